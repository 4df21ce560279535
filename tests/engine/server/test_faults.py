"""Faults of one request in a running server: it ends with an error, it is counted, and nobody else notices."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
import torch

from pagefleet_engine.api import RuntimeSettings
from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.metrics import Metric
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import running_server
from tests.engine.server.tiny import running_tiny_engine

SICK = {"prompt": [7, 7, *range(40)], "temperature": 0, "max_tokens": 30, "ignore_eos": True}
WELL = SICK | {"prompt": [8, 8, *range(40)]}


class PoisonedExecutor(LocalExecutor):
    """Spoils sealed or open frames of whoever's prompt begins with 7, 7, after two tokens of the answer."""

    def __init__(self, runner):
        super().__init__(runner)
        self.runner = runner

    def execute(self, output):
        for request in output.requests:
            if list(request.known_token_ids[:2]) == [7, 7] and request.num_known == request.num_prompt_tokens + 2:
                held = next(iter(request.context)).frame if self.sealed else request.writes[0].frames[0]
                self.runner.cache.pool[held] = 0xFF
        return super().execute(output)

    sealed = False


class PoisonedScales(PoisonedExecutor):
    """The same for a sealed frame, whose scales become NaN."""

    sealed = True


async def answers(executor_of, precision):
    """What a sick request and a well one get side by side, then the well one again, then the counters."""
    service = Service(limits=Limits())
    async with (
        running_tiny_engine(executor_of=executor_of, raw_dtype=torch.bfloat16, batch_invariant=True) as engine,
        running_server(None, service=service) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        service.attach(engine, (RouteConfig(name="default", model="tiny", precision=precision),))
        both = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in (SICK, WELL)))
        later = await client.post("/v1/completions", json=WELL)
        metrics = (await client.get("/metrics")).text
        assert (await client.get("/health")).status_code == 200
        await engine.configure(RuntimeSettings(cap=8, max_model_len=256, max_num_batched_tokens=64))  # figures of now
        assert engine.stats().frames["free"] == 32
        return *both, later, metrics


FAULTS = {
    "in what becomes the logits": (PoisonedExecutor, Precision.BF16),
    "in the scales of a sealed frame": (PoisonedScales, Precision.FP8_E4M3),
}


@pytest.mark.parametrize(("executor_of", "precision"), FAULTS.values(), ids=FAULTS.keys())
async def test_nan_ends_that_request_alone_and_is_counted(executor_of, precision):
    sick, well, later, metrics = await answers(executor_of, precision)
    assert sick.status_code == 500
    assert "the engine failed on this request" in sick.json()["error"]["message"]
    assert "nan" in sick.json()["error"]["message"]
    assert well.status_code == later.status_code == 200
    assert well.json()["choices"] == later.json()["choices"]
    assert f'{Metric.REQUEST_SUCCESS}{{finished_reason="error",model_name="tiny"}} 1.0' in metrics


async def test_prompts_that_are_too_much_to_wait_are_told_when_to_come_back():
    device = threading.Event()

    class Held(LocalExecutor):
        def execute(self, output):
            device.wait()
            return super().execute(output)

    body = {"max_tokens": 1, "ignore_eos": True}
    async with (
        running_tiny_engine(executor_of=Held, max_num_queued_tokens=100, max_num_seqs=1) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        first = asyncio.create_task(client.post("/v1/completions", json=body | {"prompt": [5] * 50}))
        while not engine.stats().has_work:  # noqa: ASYNC110  the step loop's thread has no event to offer
            await asyncio.sleep(0)
        bodies = [body | {"prompt": [5] * 60} for _ in range(3)]
        others = asyncio.gather(*(client.post("/v1/completions", json=each) for each in bodies))
        while server.service.lifecycle.in_flight < 4 or engine._commands.qsize() < 3:  # noqa: ASYNC110  as above
            await asyncio.sleep(0)
        device.set()
        replies = [await first, *await others]
    assert sorted(reply.status_code for reply in replies) == [200, 200, 429, 429]
    refused = [reply for reply in replies if reply.status_code == 429]
    assert {reply.headers["retry-after"] for reply in refused} == {"1"}
    assert {reply.json()["error"]["code"] for reply in refused} == {"queue_full"}


async def test_what_fits_neither_the_context_nor_the_pool_is_refused_with_the_numbers():
    async with (
        running_tiny_engine(num_frames=4) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        replies = [
            await client.post("/v1/completions", json={"prompt": [5] * length, "max_tokens": 10})
            for length in (55, 56, 250)
        ]
    assert [reply.status_code for reply in replies] == [200, 400, 400]
    assert [reply.json()["error"]["message"] for reply in replies[1:]] == [
        "66 tokens in bf16 need 5 frames of KV cache, but the whole pool has 4, enough for 65 tokens: "
        "shorten the prompt or lower max_tokens",
        "the prompt is too long: the maximum context length is 256 tokens, but this request needs "
        "260: 250 in the prompt and 10 for the answer; shorten the prompt or ask for fewer tokens",
    ]

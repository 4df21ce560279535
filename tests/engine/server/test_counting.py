"""What is counted of a request that is refused, fails or waits, and from when its times run."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.contract.metrics import Metric
from pagefleet_engine.errors import QueueFull
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.testing import ByteTokenizer

BODY = {"prompt": "a", "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BEAMS = {"use_beam_search": True, "n": 2}


def counted(service: Service, metric: Metric, label: str) -> dict[str, float]:
    """Values above zero by the value of one label."""
    [family] = text_string_to_metric_families(service.metrics.render([metric]).decode())
    return {sample.labels[label]: sample.value for sample in family.samples if sample.value}


class Full(FakeEngine):
    """Takes `num_taken` requests and refuses every later one."""

    def __init__(self, num_taken: int) -> None:
        super().__init__(say("hello"), gate=asyncio.Semaphore(0))
        self.num_left = num_taken

    async def generate(self, *args, **kwargs):
        if not self.num_left:
            raise QueueFull("full", retry_after_s=1)
        self.num_left -= 1
        async for output in super().generate(*args, **kwargs):
            yield output


# sentence → (what the client asks for, requests of the engine that are taken before it refuses)
REFUSED = {
    "one choice": ({}, 0),
    "a stream": ({"stream": True}, 0),
    "three choices": ({"n": 3}, 0),
    "three choices, the last of which is refused": ({"n": 3}, 2),
    "three prompts, the last of which is refused": ({"prompt": ["a", "b", "c"]}, 2),
    "a beam search": (BEAMS, 0),
    "two beam searches, one of which is refused": (BEAMS | {"prompt": ["a", "b"]}, 1),
    "choices with a form": ({"n": 2, "structured_outputs": {"json": {"type": "object"}}}, 1),
}


@pytest.mark.parametrize(("body", "num_taken"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_the_engine_refuses_has_not_ended(body, num_taken):
    async with running_server(Full(num_taken)) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.post("/v1/completions", json=BODY | body)).status_code == 429
        service = server.service
        assert counted(service, Metric.REFUSED, "reason") == {"queue_full": 1}
        assert counted(service, Metric.REQUEST_SUCCESS, "finished_reason") == {}
        assert counted(service, Metric.STRUCTURED_OUTPUTS, "outcome") == {}
        assert counted(service, Metric.ROUTE_REQUESTS, "route") == {}


class SlowTokenizer(ByteTokenizer):
    """Takes three seconds of a clock of its own for every text."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def encode(self, text, *, add_special_tokens=True):
        self._clock[0] += 3.0
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("body", [{}, {"n": 2}, BEAMS], ids=["one choice", "two choices", "a beam search"])
async def test_times_run_from_the_arrival(body):
    clock = [0.0]
    service = Service(limits=Limits(), monotonic=lambda: clock[0])
    engine = FakeEngine(say("hello"))
    async with running_server(engine, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        engine.tokenizer = SlowTokenizer(clock)
        assert (await client.post("/v1/completions", json=BODY | body)).status_code == 200
    for metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.E2E_LATENCY):
        [family] = text_string_to_metric_families(service.metrics.render([metric]).decode())
        values = {sample.name: sample.value for sample in family.samples}
        assert values[f"{metric}_sum"] == 3.0 * values[f"{metric}_count"] > 0

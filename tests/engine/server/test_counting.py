"""What is counted of a request that is refused, fails or waits, and from when its times run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.api import TokenOutput
from pagefleet_engine.contract.metrics import Metric
from pagefleet_engine.errors import EngineDead, QueueFull
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.lifecycle import Phase
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


@pytest.mark.parametrize("body", [{}, {"n": 3}, BEAMS], ids=["one choice", "three choices", "a beam search"])
async def test_what_a_dead_engine_does_not_take_has_not_ended(body):
    engine = FakeEngine(say("hello"))
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await engine.close()
        assert (await client.post("/v1/completions", json=BODY | body)).status_code == 503
        assert counted(server.service, Metric.REFUSED, "reason") == {"engine_stopped": 1}
        assert counted(server.service, Metric.REQUEST_SUCCESS, "finished_reason") == {}


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


class Broken(FakeEngine):
    """Ends every request by what it was made with."""

    def __init__(self, ending: TokenOutput | Exception) -> None:
        super().__init__(say(""))
        self.ending = ending

    async def generate(self, _request_id, prompt_ids, *_args):
        yield TokenOutput.empty(num_prompt_tokens=len(prompt_ids))
        if isinstance(self.ending, Exception):
            raise self.ending
        yield self.ending


def ended(reason: FinishReason, **fields) -> TokenOutput:
    return replace(TokenOutput.empty(num_prompt_tokens=1), finish_reason=reason, **fields)


COMPLETION = ("POST", "/v1/completions", BODY)
OPEN = [("GET", "/ready", None), ("HEAD", "/ready", None), ("POST", "/health", None)]

# sentence → (engine, what else is so, requests, statuses, what is counted of them)
COUNTED: dict[str, Any] = {
    "a body that is wrong": (None, {}, [("POST", "/v1/completions", {})], [400], {"invalid": 1}),
    "an unknown path": (None, {}, [("GET", "/nope", None)], [404], {"invalid": 1}),
    "no key": (None, {"keys": "key"}, [COMPLETION, COMPLETION], [401, 401], {"unauthorised": 2}),
    "a full queue": (Full(0), {}, [COMPLETION], [429], {"queue_full": 1}),
    "a drain": (None, {"phase": Phase.REFUSING}, [COMPLETION], [503], {"draining": 1}),
    "a request that is cut": (Broken(ended(FinishReason.ABORT)), {}, [COMPLETION], [503], {"aborted": 1}),
    "a dead engine": (Broken(EngineDead("it died")), {}, [COMPLETION], [503], {"engine_stopped": 1}),
    "a request that the engine fails on": (
        Broken(ended(FinishReason.ERROR, error="nan")),
        {},
        [COMPLETION],
        [500],
        {},
    ),
    "a form that cannot be followed": (
        Broken(ended(FinishReason.ERROR, error="no token is left", is_client_error=True)),
        {},
        [COMPLETION],
        [400],
        {"invalid": 1},
    ),
    "a fault of ours": (Broken(RuntimeError("oops")), {}, [COMPLETION], [500], {}),
    "probes": (None, {"phase": Phase.REFUSING}, OPEN, [503, 503, 405], {}),
}


@pytest.mark.parametrize(("engine", "world", "requests", "statuses", "want"), COUNTED.values(), ids=COUNTED.keys())
async def test_why_nobody_was_answered(engine, world, requests, statuses, want, tmp_path):
    keys = None
    if "keys" in world:
        (tmp_path / "keys").write_text(world["keys"])
        keys = ApiKeys(tmp_path / "keys", monotonic=time.monotonic)
    async with (
        running_server(engine or FakeEngine(say("x")), api_keys=keys) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        server.service.lifecycle.phase = world.get("phase", Phase.READY)
        got = [(await client.request(method, path, json=body)).status_code for method, path, body in requests]
        assert got == statuses
        assert counted(server.service, Metric.REFUSED, "reason") == want


async def test_who_came_too_early_is_counted_once_the_model_has_a_name():
    async with running_server(None) as server, httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(3):
            assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        await client.get("/ready")
        assert "requests_refused_total{" not in server.service.metrics.render().decode()
        server.service.attach(FakeEngine(say("x")))
        assert counted(server.service, Metric.REFUSED, "reason") == {"loading": 3}
        assert 'model_name=""' not in server.service.metrics.render().decode()

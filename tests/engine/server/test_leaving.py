"""Clients that leave, and servers that do: aborts, drain, refusals, the second signal."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from pagefleet_engine.server.drain import Drain, StopSignals
from pagefleet_engine.server.lifecycle import Lifecycle, Phase
from pagefleet_engine.server.testing import FakeEngine, running_server, say

BODY = {"prompt": "a", "max_tokens": 5}


def gated(text: str = "hello") -> tuple[FakeEngine, asyncio.Semaphore]:
    gate = asyncio.Semaphore(0)
    return FakeEngine(say(text), gate=gate), gate


@pytest.mark.parametrize("num_tokens", [0, 2], ids=["before the first token", "between two tokens"])
@pytest.mark.parametrize("extra", [{}, {"stream": True}, {"n": 3}], ids=["whole", "streamed", "three choices"])
async def test_a_client_that_leaves_frees_its_request(extra, num_tokens):
    engine, gate = gated()
    wanted = extra.get("n", 1)
    async with running_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=BODY | extra))
            await engine.until(lambda: len(engine.running) == wanted)
            for _ in range(num_tokens):
                gate.release()
            asking.cancel()
        await engine.until(lambda: engine.num_aborted == wanted)
        await server.service.lifecycle.wait_idle()
        assert engine.running == set()
        finished = server.service.metrics.render(["vllm:request_success_total"]).decode()
    assert f'finished_reason="abort",model_name="fake"}} {wanted}.0' in finished


async def test_one_choice_s_error_ends_all_of_them():
    engine = FakeEngine(say("hello"), gate=asyncio.Semaphore(0), max_running=2)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post("/v1/completions", json=BODY | {"n": 3})
        assert reply.status_code == 429
        assert engine.running == set()


async def test_phases_of_a_drain_as_a_client_sees_them():
    engine, gate = gated()
    signals = StopSignals()
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        lifecycle = server.service.lifecycle
        running = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await engine.until(lambda: len(engine.running) == 1)
        drain = Drain(lifecycle, grace_s=3600)
        drain.begin()
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        late = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await engine.until(lambda: len(engine.running) == 2)
        drain.refuse()
        leaving = asyncio.create_task(drain.leave(signals, timeout_s=60))
        await asyncio.wait({leaving}, timeout=0)
        refused = await client.post("/v1/completions", json=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "draining"
        metrics = (await client.get("/metrics")).text
        # One: the request. That /ready answered 503 refused nobody.
        assert 'pagefleet:requests_refused_total{model_name="fake",reason="draining"} 1.0' in metrics
        assert not leaving.done()
        for _ in range(10):
            gate.release()
        replies = await asyncio.gather(running, late)
        assert await leaving is True
    assert [reply.json()["choices"][0]["text"] for reply in replies] == ["hello", "hello"]
    assert [reply.headers["connection"] for reply in replies] == ["close", "close"]


async def test_grace_is_kept_when_nothing_runs():
    lifecycle, signals = Lifecycle(), StopSignals()
    leaving = asyncio.create_task(Drain(lifecycle, grace_s=3600).leave(signals, timeout_s=7200))
    await asyncio.wait({leaving}, timeout=0.01)
    assert (lifecycle.phase, leaving.done()) == (Phase.DRAINING, False)
    signals.received()
    signals.received()
    assert await leaving is True


async def test_the_listener_outlives_the_first_refusal():
    """Who connected at the very end of the grace is told 503 instead of being reset."""
    lifecycle, signals = Lifecycle(), StopSignals()
    drain = Drain(lifecycle, grace_s=3600, linger_s=3600)
    leaving = asyncio.create_task(drain.leave(signals, timeout_s=7200))
    await asyncio.wait({leaving}, timeout=0)
    drain.refuse()
    await asyncio.wait({leaving}, timeout=0.01)
    assert (lifecycle.phase, lifecycle.in_flight, leaving.done()) == (Phase.REFUSING, 0, False)
    signals.received()
    signals.received()
    assert await leaving is True


async def test_what_is_left_at_the_deadline_is_cut():
    lifecycle = Lifecycle()
    with lifecycle.serving():
        assert await Drain(lifecycle, grace_s=0).leave(StopSignals(), timeout_s=0) is False


async def test_a_second_signal_does_not_wait():
    lifecycle, signals = Lifecycle(), StopSignals()
    with lifecycle.serving():
        leaving = asyncio.create_task(Drain(lifecycle, grace_s=3600).leave(signals, timeout_s=7200))
        signals.received()
        signals.received()
        assert await leaving is False


async def test_a_cut_stream_ends_with_an_error_event():
    engine, gate = gated()
    gate.release()
    async with (
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as reply,
    ):
        pieces = reply.aiter_text()
        text = await anext(pieces)
        await engine.close()
        text += "".join([piece async for piece in pieces])
    assert text.startswith("data: {")
    assert text.endswith('"code":"aborted"}}\n\ndata: [DONE]\n\n')


# sentence → (what happens while the model loads, phase then, phase once the model is there)
WHILE_LOADING = {
    "nothing": ([], Phase.LOADING, Phase.READY),
    "a drain": (["begin"], Phase.DRAINING, Phase.DRAINING),
    "a drain that refuses": (["begin", "refuse"], Phase.REFUSING, Phase.REFUSING),
    "a drain that is taken back": (["begin", "cancel"], Phase.LOADING, Phase.READY),
    "a drain that is taken back late": (["begin", "refuse", "cancel"], Phase.LOADING, Phase.READY),
}


@pytest.mark.parametrize(("steps", "loading", "loaded"), WHILE_LOADING.values(), ids=WHILE_LOADING.keys())
async def test_nobody_is_served_without_a_model(steps, loading, loaded):
    engine = FakeEngine(say("hello"))
    async with running_server(None) as server, httpx.AsyncClient(base_url=server.url) as client:
        lifecycle = server.service.lifecycle
        drain = Drain(lifecycle, grace_s=3600)
        for step in steps:
            getattr(drain, step)()
        ready = await client.get("/ready")
        replies = [
            await client.post("/v1/completions", json={"prompt": "a"}),
            await client.post("/tokenize", json={"prompt": "a"}),
            await client.get("/v1/models"),
        ]
        assert (ready.status_code, ready.text) == (503, f"{loading}\n")
        assert [(r.status_code, r.json()["error"]["code"]) for r in replies] == [(503, "loading")] * 3
        server.service.attach(engine)
        assert lifecycle.phase is loaded
        drain.cancel()
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        drain._stop_timer()

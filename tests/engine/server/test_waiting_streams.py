"""Streams that wait for their first token: when their headers leave, what keeps them alive, who is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import httpx
import openai
import pytest

from pagefleet_engine.request import FinishReason, SamplingParams
from pagefleet_engine.server.generation import run_job
from pagefleet_engine.server.intake import Intake
from pagefleet_engine.server.job import Job, PromptPlan, spread
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, running_server, say

BODY = {"prompt": "a", "max_tokens": 9, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
AT_ONCE = Limits(stream_headers_s=0.0, stream_comment_s=3_600)
CHATTY = Limits(stream_headers_s=0.0, stream_comment_s=0.01)


def gated(**kwargs) -> tuple[FakeEngine, asyncio.Semaphore]:
    gate = asyncio.Semaphore(0)
    return FakeEngine(say("hello"), gate=gate, **kwargs), gate


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", BODY), ("/v1/completions", BODY | {"n": 3}), ("/v1/chat/completions", CHAT)],
    ids=["one choice", "three choices", "a chat"],
)
async def test_headers_do_not_wait_for_the_first_token(path, body):
    engine, gate = gated()
    async with (
        running_server(engine, limits=AT_ONCE) as server,
        httpx.AsyncClient(base_url=server.url, timeout=None) as client,
        client.stream("POST", path, json=body) as reply,
    ):
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert len(engine.running) == body.get("n", 1)
        for _ in range(30):
            gate.release()
        text = "".join([piece async for piece in reply.aiter_text()])
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")


async def test_a_refusal_has_its_own_status_although_others_of_its_choices_were_taken():
    engine, _ = gated(max_running=2)
    async with running_server(engine, limits=AT_ONCE) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post("/v1/completions", json=BODY | {"n": 3})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert engine.running == set()


class Failing(FakeEngine):
    """Takes every request, and fails on it in its first step."""

    async def _play(self, prompt_ids, params):
        yield replace(self._output(prompt_ids, (), FinishReason.ERROR), error="nan")


async def test_an_error_in_the_first_step_has_its_own_status():
    """The status waits a moment for the first token, and most answers need no more."""
    async with running_server(Failing(say(""))) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post("/v1/completions", json=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")


async def test_a_stream_that_waits_says_so_in_comments():
    engine, gate = gated()
    async with (
        running_server(engine, limits=CHATTY) as server,
        httpx.AsyncClient(base_url=server.url, timeout=None) as client,
        client.stream("POST", "/v1/completions", json=BODY) as reply,
    ):
        pieces = reply.aiter_text()
        before = await anext(pieces)
        gate.release()
        while "data:" not in (between := await anext(pieces)):
            assert between == ": waiting\n\n" * (len(between) // 11)
        while "data:" in (after := await anext(pieces)):
            pass
        for _ in range(9):
            gate.release()
        rest = "".join([piece async for piece in pieces])
    assert before.startswith(": waiting\n\n")
    assert after.startswith(": waiting\n\n")
    events = [event for event in rest.split("\n\n") if event.startswith("data:")]
    assert (len(events), events[-1]) == (6, "data: [DONE]")  # four more letters, the end, and that


async def test_the_openai_client_reads_over_comments():
    engine, gate = gated()
    async with (
        running_server(engine, limits=CHATTY) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(model="fake", **CHAT)
        comments = asyncio.create_task(_release_after_comments(stream.response, gate))
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        await comments
    assert text == "hello"


async def _release_after_comments(response: httpx.Response, gate: asyncio.Semaphore) -> None:
    """One token after every few bytes that were read, which can be comments alone."""
    for _ in range(6):
        before = response.num_bytes_downloaded
        while response.num_bytes_downloaded == before:  # noqa: ASYNC110  the client says nothing of comments
            await asyncio.sleep(0.001)
        gate.release()


async def test_a_client_that_leaves_before_the_first_token_frees_its_request():
    engine, _ = gated()
    async with running_server(engine, limits=CHATTY) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=None) as client,
            client.stream("POST", "/v1/completions", json=BODY | {"n": 2}) as reply,
        ):
            assert await anext(reply.aiter_text()) == ": waiting\n\n"
        await engine.until(lambda: engine.num_aborted == 2)
        await server.service.lifecycle.wait_idle()


async def test_what_nobody_reads_of_several_choices_waits_in_the_engine():
    """Which merges it; the job itself asks for a few outputs ahead and no more."""
    told = []

    def script(_prompt, _params):
        for number in range(1_000):
            told.append(number)
            yield 97

    service = Service(limits=Limits())
    service.attach(FakeEngine(script, max_model_len=3_000))
    sampling = SamplingParams(max_tokens=2_000, n=3)
    plan = PromptPlan(prompt_ids=(1,), sampling=sampling, pick=service.routes.pick("fake", 2_001))
    job = Job(id="a", key="a", created=0, arrived_at_s=0.0, model="fake", choices=spread([plan]), num_prompt_tokens=1)
    async with aclosing(run_job(service, job, Intake(3))) as deltas:
        await anext(deltas)
        for _ in range(5_000):  # turns of the loop, in each of which the engine could say something
            await asyncio.sleep(0)
        assert len(told) <= 12
        rest = [delta async for delta in deltas]
    assert sum(delta.num_tokens for delta in rest) == 3_000 - 1
    service.text.close()
    service.structured.close()

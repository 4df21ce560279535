"""Several choices of one prompt: they share its frames, and say what separate requests would."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pagefleet_engine.api import EngineStats, RequestOptions, RuntimeSettings, TokenLogprobs
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.best_of import mean_logprob
from pagefleet_engine.server.shapes import Whole
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.tiny import running_tiny_engine

PROMPT = "a prompt that takes more than one frame of sixteen tokens"
BODY = {"prompt": PROMPT, "temperature": 1.0, "max_tokens": 12, "logprobs": 0, "seed": 7}


@asynccontextmanager
async def tiny():
    """A real engine, its server and a client."""
    async with (
        running_tiny_engine(batch_invariant=True) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        yield engine, client


async def choices(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    reply = await client.post("/v1/completions", json=BODY | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def streamed(text: str) -> dict[int, str]:
    """The text of each choice in a stream."""
    texts: dict[int, str] = {}
    for line in text.split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def settled(engine) -> EngineStats:
    """The figures once everything asked of the step loop until now has been done."""
    await engine.configure(RuntimeSettings(cap=8, max_model_len=256, max_num_batched_tokens=64))
    return engine.stats()


async def test_n_choices_are_what_separate_requests_with_their_seeds_say():
    async with tiny() as (engine, client):
        alone = [(await choices(client, seed=7 + i))[0] for i in range(4)]
        together = await choices(client, n=4)
        stream = await client.post("/v1/completions", json=BODY | {"n": 4, "stream": True})
        stats = await settled(engine)
        forks = engine._core.scheduler.stats().counters.forks
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    assert [choice["logprobs"] for choice in together] == [choice["logprobs"] for choice in alone]
    assert streamed(stream.text) == {i: choice["text"] for i, choice in enumerate(alone)}
    assert len({choice["text"] for choice in alone}) > 1
    assert forks == 2 * 3
    assert stats.frames["free"] == sum(stats.frames.values())


async def test_shared_frames_are_no_cached_tokens():
    async with tiny() as (_, client):
        usage = (await client.post("/v1/completions", json=BODY | {"n": 3})).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stop_string_in_one_choice_leaves_the_others_alone():
    async with tiny() as (engine, client):
        together = await choices(client, n=3)
        stop = together[0]["text"][2:4]
        cut = await choices(client, n=3, stop=stop)
        stats = await settled(engine)
    assert stats.frames["free"] == sum(stats.frames.values())
    for whole, short in zip(together, cut, strict=True):
        assert short["text"] == whole["text"].split(stop)[0]


async def test_best_of_returns_the_most_likely_answers():
    async with tiny() as (_, client):
        candidates = await choices(client, n=5)
        ranked = sorted(candidates, key=lambda choice: -mean(choice["logprobs"]["token_logprobs"]))
        reply = await client.post("/v1/completions", json=BODY | {"n": 2, "best_of": 5})
        hidden = await choices(client, n=1, best_of=5, logprobs=None)
    best, usage = reply.json()["choices"], reply.json()["usage"]
    assert [choice["text"] for choice in best] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best] == [0, 1]
    assert [choice["logprobs"] for choice in best] == [choice["logprobs"] for choice in ranked[:2]]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT) + 1, 60)
    assert (hidden[0]["text"], hidden[0]["logprobs"]) == (ranked[0]["text"], None)


async def test_best_of_for_each_prompt():
    async with tiny() as (_, client):
        pair = await choices(client, prompt=[PROMPT, "another"], best_of=3)
        each = [(await choices(client, prompt=prompt, best_of=3))[0] for prompt in (PROMPT, "another")]
    assert [choice["text"] for choice in pair] == [choice["text"] for choice in each]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_an_empty_answer_is_never_the_best():
    one = Whole(text="x", logprobs=[TokenLogprobs(token_id=1, logprob=-50.0)])
    assert mean_logprob(Whole()) < mean_logprob(one) == -50.0


# sentence → (fields, options of the engine's requests without their parent)
OPTIONS = {
    "nothing asked for": ({}, RequestOptions(precision=Precision.BF16)),
    "null is as good as absent": ({"priority": None, "cache_salt": None}, RequestOptions(precision=Precision.BF16)),
    "a priority": ({"priority": -100}, RequestOptions(precision=Precision.BF16, priority=-100)),
    "a salt": ({"cache_salt": "é"}, RequestOptions(precision=Precision.BF16, cache_salt="é")),
}


@pytest.mark.parametrize(("fields", "want"), OPTIONS.values(), ids=OPTIONS.keys())
async def test_options_reach_the_engine(fields, want):
    engine = FakeEngine(say("hello"))
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post("/v1/completions", json={"prompt": "a"} | fields)
        chat = {"messages": [{"role": "user", "content": "a"}]} | fields
        await client.post("/v1/chat/completions", json=chat)
    assert engine.options == [want, want]


async def test_a_salt_separates_prefixes():
    async with (
        running_tiny_engine(enable_prefix_caching=True) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        cached = []
        for salt in ("a", "b", "a", None, None):
            usage = (await client.post("/v1/completions", json=BODY | {"cache_salt": salt})).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 48, 0, 48]

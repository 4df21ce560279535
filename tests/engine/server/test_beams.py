"""Beam search: against every possible answer, and on the real engine against a search without a cache."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.beam import BeamSearch
from pagefleet_engine.server.testing import running_server
from pagefleet_engine.testing import ByteTokenizer, naive_logits, tiny_decoder
from tests.engine.server.test_choices import settled
from tests.engine.server.tiny import running_tiny_engine

EOS = 0
VOCABULARY = range(4)
PROMPT = "which way"


def table(seed: int) -> dict[tuple[int, ...], list[float]]:
    """Log probabilities of every token after every beginning of at most three tokens."""
    rng = random.Random(seed)
    beginnings = [b for length in range(4) for b in itertools.product(VOCABULARY, repeat=length)]
    weights = {beginning: [rng.random() for _ in VOCABULARY] for beginning in beginnings}
    return {b: [math.log(w / sum(row)) for w in row] for b, row in weights.items()}


def search_all(logprobs: dict, *, max_tokens: int, num_prompt: int, penalty: float) -> list[tuple[float, tuple]]:
    """Score and tokens of every answer there is, best first."""
    found = []
    for tokens in itertools.chain(*(itertools.product(range(1, 4), repeat=n) for n in range(max_tokens + 1))):
        total = sum(logprobs[tokens[:i]][token] for i, token in enumerate(tokens))
        if len(tokens) < max_tokens:
            total += logprobs[tokens][EOS]
        found.append((total / max(num_prompt + len(tokens), 1) ** penalty, tokens))
    return sorted(found, key=lambda one: -one[0])


def run_search(logprobs: dict, **options: Any) -> tuple[BeamSearch, int]:
    search, steps = BeamSearch(stop_token_ids=frozenset({EOS}), **options), 0
    while not search.is_done():
        rows = [list(enumerate(logprobs[beam.token_ids])) for beam in search.live]
        best_first = [sorted(row, key=lambda pair: -pair[1])[: 2 * search.width] for row in rows]
        search.advance(best_first)
        steps += 1
    return search, steps


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_beams_wide_enough_find_the_best_of_all_answers(seed, penalty):
    logprobs = table(seed)
    want = search_all(logprobs, max_tokens=3, num_prompt=5, penalty=penalty)
    search, _ = run_search(logprobs, width=40, num_prompt=5, max_tokens=3, length_penalty=penalty)
    got = search.best(40)
    assert [beam.token_ids for beam in got] == [tokens for _, tokens in want]
    assert [search.score(beam) for beam in got] == pytest.approx([score for score, _ in want])
    assert all((beam.finish_reason is FinishReason.LENGTH) == (len(beam.token_ids) == 3) for beam in got)


def test_it_ends_as_soon_as_nothing_better_can_come():
    likely_end = {b: [-0.01, -9.0, -9.0, -9.0] for b in table(0)}
    search, steps = run_search(likely_end, width=1, num_prompt=5, max_tokens=3)
    assert (steps, [beam.token_ids for beam in search.best(1)]) == (1, [()])


@asynccontextmanager
async def tiny():
    async with (
        running_tiny_engine(batch_invariant=True) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        yield engine, client


def search_naively(prompt: list[int], *, width: int, max_tokens: int, eos: set[int]) -> list[tuple[int, ...]]:
    """Beam search by the book on the bare model: every prefix from its beginning, no cache, no forks."""
    decoder = tiny_decoder()
    beams, complete = [(0.0, ())], []
    for _ in range(max_tokens):
        grown = []
        for logprob, tokens in beams:
            row = naive_logits(decoder, [*prompt, *tokens])[-1].log_softmax(dim=-1)
            values, ids = row.topk(2 * width)
            for value, token in zip(values.tolist(), ids.tolist(), strict=True):
                if token in eos:
                    complete.append((logprob + value, tokens))
                else:
                    grown.append((logprob + value, (*tokens, token)))
        beams = sorted(grown, key=lambda beam: -beam[0])[:width]
    ranked = sorted(complete + beams, key=lambda beam: -beam[0] / (len(prompt) + len(beam[1])))
    return [tokens for _, tokens in ranked[:width]]


# sentence → (fields, tokens that end an answer)
SEARCHES = {
    "three beams": ({"beam_width": 3, "n": 3, "max_tokens": 6}, {257}),
    "n is the width": ({"n": 4, "max_tokens": 5}, {257}),
    "one beam is greedy": ({"beam_width": 1, "max_tokens": 6}, {257}),
    "no end": ({"beam_width": 2, "n": 2, "max_tokens": 4, "ignore_eos": True}, set()),
    "other ends": (  # some answers are complete before the last step
        {"beam_width": 5, "n": 5, "max_tokens": 5, "stop_token_ids": list(range(60, 90))},
        {257, *range(60, 90)},
    ),
}


@pytest.mark.parametrize(("fields", "eos"), SEARCHES.values(), ids=SEARCHES.keys())
async def test_the_engine_finds_what_a_search_without_a_cache_finds(fields, eos):
    tokenizer = ByteTokenizer()
    async with tiny() as (engine, client):
        body = {"prompt": PROMPT, "use_beam_search": True} | fields
        reply = (await client.post("/v1/completions", json=body)).json()
        stats = await settled(engine)
        parked = engine._core.scheduler.stats().parked
    width = fields.get("beam_width", fields.get("n", 1))
    found = search_naively(tokenizer.encode(PROMPT), width=width, max_tokens=fields["max_tokens"], eos=eos)
    want = [tokenizer.decode(tokens) for tokens in found[: fields.get("n", 1)]]
    assert [choice["text"] for choice in reply["choices"]] == want
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(want)))
    assert reply["usage"]["completion_tokens"] == sum(len(tokens) for tokens in found[: len(want)])
    assert (parked, stats.frames["free"]) == (0, sum(stats.frames.values()))


async def test_one_beam_says_what_greedy_says():
    async with tiny() as (_, client):
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 10}
        greedy = (await client.post("/v1/chat/completions", json=body)).json()
        beam = (await client.post("/v1/chat/completions", json=body | {"use_beam_search": True})).json()
    assert beam["choices"][0]["message"] == greedy["choices"][0]["message"]


async def test_several_prompts():
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 4}
    async with tiny() as (_, client):
        pair = (await client.post("/v1/completions", json=fields | {"prompt": ["ab", PROMPT]})).json()["choices"]
        each = [(await client.post("/v1/completions", json=fields | {"prompt": p})).json() for p in ("ab", PROMPT)]
    assert [choice["text"] for choice in pair] == [choice["text"] for one in each for choice in one["choices"]]


async def test_beams_share_frames():
    async with tiny() as (engine, client):
        body = {"prompt": PROMPT, "use_beam_search": True, "n": 2, "max_tokens": 5, "ignore_eos": True}
        await client.post("/v1/completions", json=body)
        await settled(engine)
        assert engine._core.scheduler.stats().counters.forks == 2 * 4


async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind():
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 4, "max_tokens": 200, "ignore_eos": True}
    async with tiny() as (engine, client):
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        while engine._core.scheduler.stats().counters.forks < 8:
            await settled(engine)
        asking.cancel()
        stats = await settled(engine)
        while stats.has_work or engine._core.scheduler.stats().parked:
            stats = await settled(engine)
    assert stats.frames["free"] == sum(stats.frames.values())

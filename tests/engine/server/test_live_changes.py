"""Random valid changes to a real engine under load: every request is served, and no greedy token changes."""

from __future__ import annotations

import asyncio
import random

import httpx
import pytest

from pagefleet_engine.api import RuntimeSettings
from pagefleet_engine.contract.control import RouteConfig, RuntimeChange, RuntimeConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import EngineDead
from pagefleet_engine.server.control.runtime import Bounds, Runtime
from pagefleet_engine.server.testing import running_server
from tests.engine.server.tiny import running_tiny_engine

ROUTE = RouteConfig(name="default", model="tiny", precision=Precision.BF16)
START = RuntimeConfig(generation=1, cap=8, max_model_len=256, max_num_batched_tokens=64, routes=(ROUTE,))
BOUNDS = Bounds(capacity=8, max_model_len=256, max_num_batched_tokens=64)
BODIES = [
    {"prompt": f"request {i}", "temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 0} for i in range(12)
]
NUM_CHANGES = 200


async def answers(client: httpx.AsyncClient) -> list:
    replies = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in BODIES))
    assert [reply.status_code for reply in replies] == [200] * len(BODIES)
    return [reply.json()["choices"][0]["logprobs"] for reply in replies]


async def test_changes_under_load():
    rng = random.Random(5)
    async with (
        running_tiny_engine(batch_invariant=True) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        runtime = Runtime(START, BOUNDS, engine.configure)
        calm = await answers(client)
        changing = asyncio.create_task(change_often(runtime, rng))
        while not changing.done():
            assert await answers(client) == calm
        await changing
        stats = engine.stats()
        assert (stats.cap, stats.max_model_len) == (runtime.config.cap, runtime.config.max_model_len)


async def change_often(runtime: Runtime, rng: random.Random) -> None:
    for _ in range(NUM_CHANGES):
        await runtime.change(
            RuntimeChange(
                expected_generation=runtime.config.generation,
                cap=rng.randint(1, 8),
                max_model_len=rng.randint(32, 256),
                max_num_batched_tokens=rng.randint(16, 64),
            )
        )


async def test_a_setting_out_of_range_changes_nothing():
    async with running_tiny_engine() as engine:
        with pytest.raises(ValueError, match="cap is 9: must be 1 to 8"):
            await engine.configure(RuntimeSettings(cap=9, max_model_len=32, max_num_batched_tokens=16))
        assert (engine.stats().cap, engine.stats().max_model_len) == (8, 256)


async def test_a_change_to_an_ended_engine_says_so():
    async with running_tiny_engine() as engine:
        await engine.close()
        with pytest.raises(EngineDead):
            await engine.configure(RuntimeSettings(cap=1, max_model_len=32, max_num_batched_tokens=16))

"""Random changes to a real engine under load: every request is served, and no greedy token changes that may not.

PAGEFLEET_CHANGES=1000 makes it the long form (`make control-changes`).
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import torch

from pagefleet_engine.api import Engine, RuntimeSettings
from pagefleet_engine.contract.control import RouteConfig, RuntimeChange, RuntimeConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import EngineDead
from pagefleet_engine.server.control.runtime import Bounds, Runtime, settings_of
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import running_server
from tests.engine.server.tiny import running_tiny_engine

NUM_CHANGES = int(os.environ.get("PAGEFLEET_CHANGES", "200"))
DEFAULT = RouteConfig(name="default", model="tiny", precision=Precision.BF16)
MOVING = RouteConfig(name="moving", model="moving", precision=Precision.BF16)
START = RuntimeConfig(generation=1, cap=8, max_model_len=256, max_num_batched_tokens=64, routes=(DEFAULT, MOVING))
SHORTEST = 80

PLAIN = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 0}
STEADY = [PLAIN | {"model": "tiny", "prompt": f"request {i}"} for i in range(8)]
ON_THE_MOVE = [
    PLAIN | {"model": "moving", "prompt": f"a prompt of more than one group, the {i}th of them"} for i in range(4)
]


@dataclass(slots=True)
class Ground:
    """A real engine that is served and changed."""

    engine: Engine
    service: Service
    client: httpx.AsyncClient
    runtime: Runtime = field(init=False)

    def __post_init__(self) -> None:
        self.service.attach(self.engine, START.routes)
        info = self.engine.model_info
        bounds = Bounds(capacity=8, max_model_len=256, max_num_batched_tokens=64, info=info)
        self.runtime = Runtime(START, bounds, self._apply)

    async def _apply(self, config: RuntimeConfig) -> None:
        await self.engine.configure(settings_of(config))
        self.service.set_routes(config.routes)

    async def answers(self, bodies: list[dict[str, Any]]) -> list[Any]:
        replies = await asyncio.gather(*(self.client.post("/v1/completions", json=body) for body in bodies))
        assert [reply.status_code for reply in replies] == [200] * len(bodies)
        return [reply.json()["choices"][0]["logprobs"] for reply in replies]

    async def change(self, **fields: Any) -> None:
        await self.runtime.change(RuntimeChange(expected_generation=self.runtime.config.generation, **fields))


async def test_changes_under_load():
    async with (
        running_tiny_engine(batch_invariant=True, raw_dtype=torch.bfloat16, num_frames=64) as engine,
        running_server(None, service=Service(limits=Limits())) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        ground = Ground(engine, server.service, client)
        steady = await ground.answers(STEADY)
        by_precision = []
        for precision in Precision:
            await ground.change(routes=(DEFAULT, MOVING.model_copy(update={"precision": precision})))
            by_precision.append(await ground.answers(ON_THE_MOVE))
        allowed = list(zip(*by_precision, strict=True))
        assert all(bf16 != int4 for bf16, *_, int4 in allowed), "the precision makes no difference: proves nothing"
        changing = asyncio.create_task(change_often(ground, random.Random(5)))
        while not changing.done():
            answers = await ground.answers([*STEADY, *ON_THE_MOVE])
            assert answers[: len(STEADY)] == steady
            assert all(answer in one for answer, one in zip(answers[len(STEADY) :], allowed, strict=True))
        await changing
        assert (engine.stats().cap, engine.stats().max_model_len) == (
            ground.runtime.config.cap,
            ground.runtime.config.max_model_len,
        )
        assert server.service.routes.configs == ground.runtime.config.routes


async def change_often(ground: Ground, rng: random.Random) -> None:
    for _ in range(NUM_CHANGES):
        before = ground.runtime.config
        with pytest.raises(ApiError):
            await ground.change(**invalid_change(rng))
        assert ground.runtime.config is before
        assert ground.service.routes.configs == before.routes
        await ground.change(**valid_change(rng))


def valid_change(rng: random.Random) -> dict[str, Any]:
    moving = MOVING.model_copy(
        update={
            "precision": rng.choice(list(Precision)),
            "control_share": rng.choice([0.0, 0.05, 0.5, 1.0]),
            "max_context": rng.choice([None, 20, 200]),
            "structured": rng.choice(["off", "validate"]),
        }
    )
    everything = {
        "cap": rng.randint(1, 8),
        "max_model_len": rng.randint(SHORTEST, 256),
        "max_num_batched_tokens": rng.randint(16, 64),
        "routes": (DEFAULT, moving),
    }
    return {name: everything[name] for name in rng.sample(sorted(everything), rng.randint(1, 4))}


def invalid_change(rng: random.Random) -> dict[str, Any]:
    """One field is wrong; the others are as good as any."""
    wrong = [
        {"cap": rng.choice([0, -1, 9, 10**12])},
        {"max_model_len": rng.choice([0, 15, 257])},
        {"max_num_batched_tokens": rng.choice([0, 65])},
        {"routes": rng.choice([(DEFAULT,), (MOVING, DEFAULT), (MOVING,), (DEFAULT, MOVING, MOVING)])},
        {"routes": (DEFAULT, MOVING.model_copy(update={"model": "elsewhere"}))},
        {"routes": (DEFAULT, MOVING, MOVING.model_copy(update={"name": "new", "model": "new"}))},
    ]
    return valid_change(rng) | rng.choice(wrong)


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

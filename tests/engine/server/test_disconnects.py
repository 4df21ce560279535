"""Clients that leave at random moments, whatever they asked for: nothing of their requests stays behind.

PAGEFLEET_DISCONNECTS=10000 makes it the long form (`make disconnects`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from typing import Any

import httpx

from pagefleet_engine.server.testing import running_server
from tests.engine.server.test_choices import settled
from tests.engine.server.tiny import running_tiny_engine

NUM_CLIENTS = int(os.environ.get("PAGEFLEET_DISCONNECTS", "150"))
CONCURRENCY = 8
STAY_TOKENS = 240

# What a client asks for, besides its prompt.
KINDS: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"n": 3},
    {"n": 3, "stream": True},
    {"n": 2, "best_of": 4},
    {"use_beam_search": True, "n": 2, "beam_width": 3},
    {"stream": True, "priority": -1, "cache_salt": "other"},
]


async def leave(client: httpx.AsyncClient, rng: random.Random, engine) -> None:
    """Ask, and hang up after a random number of the engine's steps; some stay to the end."""
    body = rng.choice(KINDS) | {
        "prompt": "beginning " + "x" * rng.randrange(20),
        "max_tokens": rng.randrange(1, 120),
        "ignore_eos": True,
    }
    asking = asyncio.create_task(client.post("/v1/completions", json=body))
    leaves_at = engine.stats().step_counter + rng.choice([0, 1, 3, 10, 30, 60, 1_000_000])
    while not asking.done() and (await settled(engine)).step_counter < leaves_at:
        pass
    asking.cancel()
    await asyncio.wait({asking})
    if not asking.cancelled():
        assert asking.result().status_code == 200, asking.result().text


async def stay(client: httpx.AsyncClient, prompt: str, leaving: asyncio.Event) -> None:
    """A client that is served to the end, again and again until the others have left."""
    body = {"prompt": prompt, "max_tokens": STAY_TOKENS, "ignore_eos": True, "priority": 1}
    while not leaving.is_set():
        reply = await client.post("/v1/completions", json=body)
        assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, STAY_TOKENS)


async def leave_under_pressure(client: httpx.AsyncClient, engine) -> None:
    """Enough clients leave, and somebody was preempted before the first of them and again meanwhile."""
    while (before := (await settled(engine)).preemptions_total) == 0:
        pass
    rng = random.Random(11)
    asked = itertools.count()

    async def one_after_the_other() -> None:
        while next(asked) < NUM_CLIENTS or engine.stats().preemptions_total == before:
            await leave(client, rng, engine)

    await asyncio.gather(*(one_after_the_other() for _ in range(CONCURRENCY)))


async def test_nothing_stays_behind():
    """The three clients that stay need twice the frames that there are, so that somebody is always without."""
    frames_of_one = -(-STAY_TOKENS // 16)
    scheduling = {"num_frames": 3 * frames_of_one // 2, "num_host_frames": 16, "enable_prefix_caching": True}
    async with (
        running_tiny_engine(**scheduling, max_num_queued=1_000) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=None) as client,
    ):
        left = asyncio.Event()
        staying = asyncio.gather(*(stay(client, str(i), left) for i in range(3)))
        leaving = asyncio.create_task(leave_under_pressure(client, engine))
        await asyncio.wait({leaving, staying}, return_when=asyncio.FIRST_COMPLETED)
        left.set()
        await asyncio.gather(leaving, staying)
        await server.service.lifecycle.wait_idle()
        stats = await settled(engine)
        scheduler = engine._core.scheduler
        assert dict(scheduler.requests) == {}
        scheduler.check_invariants()
        assert (stats.kv_usage, stats.cpu_kv_usage, stats.has_work) == (0.0, 0.0, False)
        assert (stats.frames["open"], stats.frames["in_transfer"]) == (0, 0)
        assert scheduler.stats().counters.forks > 0
        assert stats.swaps_total > 0

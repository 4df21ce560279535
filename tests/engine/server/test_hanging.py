"""What `/health` says when the engine hangs or has died, in made-up time; the watchdog sees a hang, too."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx

from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.scheduling.output import ScheduleOutput
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.progress import DEFAULT_BUDGET_S
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.server.watchdog import BUDGET_S, Watchdog
from tests.engine.server.tiny import running_tiny_engine

BODY = {"prompt": [3, 1, 4], "max_tokens": 2, "ignore_eos": True}


class Device:
    """Hangs in every step from the one numbered `hangs_at` on, until it is let go."""

    def __init__(self, hangs_at: int) -> None:
        self.hangs_at = hangs_at
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def executor_of(self, runner: Any) -> LocalExecutor:
        device = self

        class Hanging(LocalExecutor):
            def execute(self, output: ScheduleOutput) -> Any:
                if output.step >= device.hangs_at:
                    device.hangs.set()
                    device.let_go.wait()
                return super().execute(output)

        return Hanging(runner)


class World:
    """A service whose clock the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.service = Service(limits=Limits(), monotonic=lambda: self.now)

    def watchdog(self) -> Watchdog:
        return Watchdog(stats=self.service.stats, monotonic=lambda: self.now, give_up=print)


async def see_a_hang(hangs_at: int) -> tuple[list[int], str | None]:
    """Statuses of `/health` before, in and after the budget of a step that hangs; then what the watchdog sees."""
    world, device = World(), Device(hangs_at)
    async with (
        running_tiny_engine(executor_of=device.executor_of) as engine,
        running_server(engine, service=world.service) as server,
        httpx.AsyncClient(base_url=server.url, timeout=None) as client,
    ):
        watchdog = world.watchdog()
        statuses = [(await client.get("/health")).status_code]
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        try:
            await asyncio.to_thread(device.hangs.wait)
            statuses.append((await client.get("/health")).status_code)
            assert watchdog.problem(world.now) is None
            world.now += DEFAULT_BUDGET_S + 1
            statuses.append((await client.get("/health")).status_code)
            world.now += BUDGET_S
            watchdog._beat_at = world.now  # the event loop goes on
            problem = watchdog.problem(world.now)
        finally:
            device.let_go.set()
            assert (await asking).status_code == 200
        return statuses, problem


async def test_the_first_step_after_idleness():
    statuses, problem = await see_a_hang(hangs_at=1)
    assert statuses == [200, 200, 503]
    assert problem == "no step has finished for 421 s although requests wait"


async def test_a_later_step():
    """The step before has finished a moment ago, within the interval of the looks."""
    statuses, problem = await see_a_hang(hangs_at=2)
    assert statuses == [200, 200, 503]
    assert problem == "no step has finished for 421 s although requests wait"


async def test_what_everybody_may_read_does_not_say_how_the_engine_died():
    engine = FakeEngine(say("x"))
    engine.figures = replace(engine.figures, fatal="the step loop died: OSError: /srv/secret/model.gguf")
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.get("/health")
    assert (reply.status_code, reply.text) == (503, "the engine has stopped: its log says why\n")

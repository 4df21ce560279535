"""The watchdog: what it takes for stuck, in made-up time, and that its thread says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pagefleet_engine.server.testing import FakeEngine, say
from pagefleet_engine.server.watchdog import Watchdog

IDLE = FakeEngine(say("x")).figures


class World:
    now = 0.0
    stats = IDLE

    def watchdog(self, give_up=print, **kwargs):
        return Watchdog(stats=lambda: self.stats, monotonic=lambda: self.now, give_up=give_up, **kwargs)


def test_a_loop_that_does_not_run_is_stuck():
    watchdog = World().watchdog(budget_s=10)
    assert watchdog.problem(10.0) is None
    assert watchdog.problem(11.0) == "the event loop has not run for 11 s"


def test_work_without_a_step_is_stuck():
    world = World()
    watchdog = world.watchdog(budget_s=10)
    world.stats = replace(IDLE, has_work=True, step_counter=1)
    assert watchdog.problem(1.0) is None
    watchdog._beat_at = 12.0  # the event loop goes on
    assert watchdog.problem(12.0) == "no step has finished for 11 s although requests wait"


async def test_its_thread_reports_once_and_ends():
    told: asyncio.Queue[str] = asyncio.Queue()
    loop, world = asyncio.get_running_loop(), World()
    watchdog = world.watchdog(
        lambda text: loop.call_soon_threadsafe(told.put_nowait, text), budget_s=10, interval_s=0.01
    )
    watchdog.start()
    world.now = 11.0
    assert await told.get() == "the event loop has not run for 11 s"
    watchdog.stop()

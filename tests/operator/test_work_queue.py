"""The queue: no wake-up is lost, no key is worked on twice at once, failures back off and never end."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.errors import UnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.work_queue import WorkQueue

A, B, C = Key("n", "a"), Key("n", "b"), Key("n", "c")


class Work:
    """Counts, and blocks while `gate` is closed."""

    def __init__(self):
        self.seen = Counter()
        self.active = Counter()
        self.most_active = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.outcomes = []

    async def __call__(self, key):
        self.seen[key] += 1
        self.active[key] += 1
        assert self.active[key] == 1, "one worker per key"
        self.most_active = max(self.most_active, sum(self.active.values()))
        self.started.set()
        try:
            await self.gate.wait()
            outcome = self.outcomes.pop(0) if self.outcomes else None
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            self.active[key] -= 1


@pytest.fixture
async def work():
    return Work()


@pytest.fixture
def metrics():
    return OperatorMetrics(CollectorRegistry())


@pytest.fixture
async def queue(work, metrics):
    made = WorkQueue(work, metrics=metrics, random=lambda: 0.0)
    task = asyncio.create_task(made.run(workers=2))
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_many_wake_ups_before_the_turn_cost_one(queue, work):
    for _ in range(100):
        queue.add(A)
    await queue.settle()
    assert work.seen == {A: 1}


async def test_wake_ups_during_the_turn_cost_one_more(queue, work):
    work.gate.clear()
    queue.add(A)
    await work.started.wait()
    for _ in range(100):
        queue.add(A)
    work.gate.set()
    await queue.settle()
    assert work.seen == {A: 2}


async def test_keys_run_beside_each_other_up_to_the_bound(queue, work):
    work.gate.clear()
    for key in (A, B, C):
        queue.add(key)
    for _ in range(10):
        await asyncio.sleep(0)
    assert work.most_active == 2
    work.gate.set()
    await queue.settle()
    assert work.seen == {A: 1, B: 1, C: 1}


@pytest.mark.parametrize("error", [UnreachableError("no answer"), RuntimeError("a bug")], ids=["known", "unknown"])
async def test_a_failure_is_tried_again_and_stops_nobody_else(work, metrics, error, monkeypatch):
    queue = WorkQueue(work, metrics=metrics, random=lambda: 0.0)
    delays = collect_timers(monkeypatch)
    work.outcomes = [error, error, error, None]
    task = asyncio.create_task(queue.run(workers=1))
    for _ in range(4):
        queue.add(A)
        await queue.settle()
    queue.add(B)
    await queue.settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert delays == [0.5, 1.0, 2.0]
    assert work.seen == {A: 4, B: 1}


async def test_back_off_ends_at_a_minute_and_a_success_forgets_it(work, metrics, monkeypatch):
    queue = WorkQueue(work, metrics=metrics, random=lambda: 1.0)
    delays = collect_timers(monkeypatch)
    work.outcomes = [UnreachableError("no answer")] * 9 + [None, UnreachableError("no answer")]
    task = asyncio.create_task(queue.run(workers=1))
    for _ in range(11):
        queue.add(A)
        await queue.settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1]


async def test_a_key_that_asks_for_another_look_gets_it(queue, work):
    work.outcomes = [timedelta(0)]
    queue.add(A)
    await queue.settle()
    work.started.clear()
    await work.started.wait()
    await queue.settle()
    assert work.seen == {A: 2}


def collect_timers(monkeypatch):
    """Delays that were asked for, instead of waiting for them."""
    delays = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_later", lambda delay, *_: delays.append(delay) or asyncio.TimerHandle(0, print, (), loop)
    )
    return delays

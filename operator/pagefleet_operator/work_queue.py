"""A keyed work queue: wake-ups coalesce, one worker at a time per key, bounded concurrency, jittered back-off.

Any number of `add`s before a key's turn cost one reconcile; an `add` during its turn costs one more afterwards, so no
wake-up is lost. This is one of the two outermost loops: whatever the work raises is logged, counted and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import perf_counter
from typing import Final

from pagefleet_operator.errors import OperatorError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics

logger = logging.getLogger(__name__)
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0

Work = Callable[[Key], Awaitable[timedelta | None]]


class WorkQueue:
    """A key is in at most one of: waiting, running. `_again` holds running keys that were added meanwhile."""

    def __init__(self, work: Work, *, metrics: OperatorMetrics, random: Callable[[], float]) -> None:
        self._work = work
        self._metrics = metrics
        self._random = random
        self._waiting: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting_keys: set[Key] = set()
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Reconcile this key soon."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting_keys:
            self._waiting_keys.add(key)
            self._waiting.put_nowait(key)
            self._metrics.queue_depth.set(len(self._waiting_keys))

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker())

    async def settle(self) -> None:
        """Wait until nothing waits or runs; timers do not count."""
        await self._waiting.join()

    async def _worker(self) -> None:
        while True:
            key = await self._waiting.get()
            self._start(key)
            try:
                delay = await self._attempt(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif delay is not None:
                self._timers[key] = asyncio.get_running_loop().call_later(delay.total_seconds(), self.add, key)
            self._waiting.task_done()

    def _start(self, key: Key) -> None:
        self._waiting_keys.discard(key)
        self._metrics.queue_depth.set(len(self._waiting_keys))
        self._running.add(key)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _attempt(self, key: Key) -> timedelta | None:
        started = perf_counter()
        try:
            delay = await self._work(key)
        except OperatorError as error:
            delay = self._back_off(key)
            self._count("retry", started)
            logger.warning("%s: trying again in %.1f s: %s", key, delay.total_seconds(), error)
        except Exception:
            delay = self._back_off(key)
            self._count("crash", started)
            logger.exception("%s: trying again in %.1f s after an error of the operator", key, delay.total_seconds())
        else:
            self._failures.pop(key, None)
            self._count("ok", started)
        return delay

    def _back_off(self, key: Key) -> timedelta:
        """Doubles from one second to a minute, half of it random, for ever."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures - 1, 10))
        return timedelta(seconds=longest * (0.5 + 0.5 * self._random()))

    def _count(self, result: str, started: float) -> None:
        self._metrics.reconciles.labels(result=result).inc()
        self._metrics.reconcile_seconds.observe(perf_counter() - started)

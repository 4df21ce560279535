"""Threads for work that clients cause. Waiting for a thread and working have clocks of their own.

So nobody's work counts as slow because that of others is. A thread cannot be stopped: work that is given up runs on to
its end, bounded by the size of its input.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class NoThreadFree(Exception):
    """The work has not begun in time."""


class TooSlow(Exception):
    """The work has begun, and has not ended in time."""


class Work(Generic[T]):
    """One piece of work, which several may wait for."""

    def __init__(self, begun: Future[float], done: Future[T]) -> None:
        self._begun = begun
        self._done = done

    @property
    def is_done(self) -> bool:
        return self._done.done()

    @property
    def has_failed(self) -> bool:
        """It is done, and has no result."""
        return self._done.done() and (self._done.cancelled() or self._done.exception() is not None)

    def drop(self) -> None:
        """Nobody waits for it: it need not begin."""
        self._done.cancel()

    async def result(self, *, wait_s: float | None = None, work_s: float | None = None) -> T:
        """Raises `NoThreadFree`, `TooSlow`, or what the work raises. Who gives up leaves it to the others."""
        await _until_any((self._begun, self._done), timeout_s=wait_s)
        if not self._done.done() and self._begun.done():
            left_s = None if work_s is None else max(0.0, self._begun.result() + work_s - time.monotonic())
            await _until_any((self._done,), timeout_s=left_s)
            if not self._done.done():
                raise TooSlow
        if not self._done.done() or self._done.cancelled():
            raise NoThreadFree
        return self._done.result()


async def _until_any(futures: Sequence[Future[Any]], *, timeout_s: float | None) -> None:
    """Returns when one of them is done, or after `timeout_s`."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits
            loop.call_soon_threadsafe(told.set)

    for future in futures:
        future.add_done_callback(tell)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await told.wait()


class WorkPool:
    """Some threads; close it."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    def submit(self, work: Callable[[], T]) -> Work[T]:
        """Begins as soon as a thread is free."""
        begun: Future[float] = Future()

        def run() -> T:
            begun.set_result(time.monotonic())
            return work()

        return Work(begun, self._threads.submit(run))

    def close(self) -> None:
        """End the threads once their present work is done; what waits is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

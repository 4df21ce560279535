"""A thread with room for deep recursion: llguidance recurses once for each rule of a chain.

Where the usual 8 MiB of stack end, the process does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

STACK_BYTES: Final = 256 * 2**20
"""Address space; only what is touched takes memory. A chain of `Limits.schema_bytes` takes about 16 MiB."""

_lock = threading.Lock()


def with_deep_stack(work: Callable[[], T]) -> T:
    """The result of `work`, or what it raises, from a thread of its own."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    with _lock:  # the size is the whole process's, for the threads that start meanwhile
        usual = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=run, name="deep-stack", daemon=True).start()
        finally:
            threading.stack_size(usual)
    return outcome.result()

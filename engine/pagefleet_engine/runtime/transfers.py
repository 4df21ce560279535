"""Copies between the pool and host memory that run beside the computation, and what has to wait for them.

Transfers run one after the other on a lane of their own, after everything that was computed before they began. Whoever
touches a frame next waits for that frame's last transfer; nobody waits for others. So a frame that is being swapped out
is not written, and one that is being swapped in is not read, before its copy has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Lane(Protocol):
    """Runs transfers in order. A mark stands for the end of one."""

    def run(self, copies: Callable[[], None], /) -> Any:
        """Begin the copies after all computation so far; returns their mark, perhaps before they have ended."""
        ...

    def wait(self, mark: Any, /) -> None:
        """Computation from now on begins after the mark; the caller need not wait."""
        ...

    def is_done(self, mark: Any, /) -> bool: ...


class InlineLane:
    """Copies at once: what a CPU does."""

    def run(self, copies: Callable[[], None], /) -> None:
        copies()

    def wait(self, mark: None, /) -> None:
        """Nothing is ever pending."""

    def is_done(self, mark: None, /) -> bool:
        return True


class Transfers:
    """The transfers of one pool."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._marks: list[Any] = []
        """Pending, oldest first; they end in this order."""
        self._first = 0
        """Number of the oldest one."""
        self._last_of: dict[int, int] = {}
        """Frame → number of its last transfer, if that is pending."""

    @property
    def are_pending(self) -> bool:
        """Some transfer may not have ended."""
        ended = 0
        while ended < len(self._marks) and self._lane.is_done(self._marks[ended]):
            ended += 1
        self._settle(ended)
        return bool(self._marks)

    def begin(self, frames: Iterable[int], copies: Callable[[], None]) -> None:
        """Start copies that read or write these frames."""
        self._marks.append(self._lane.run(copies))
        number = self._first + len(self._marks) - 1
        self._last_of.update(dict.fromkeys(frames, number))

    def wait_for(self, frames: Iterable[int]) -> None:
        """What is computed from now on may read and write these frames."""
        pending = [self._last_of[frame] for frame in frames if frame in self._last_of]
        if pending:
            self._wait_until(max(pending))

    def wait_for_all(self) -> None:
        """What is computed from now on may touch any frame."""
        if self._marks:
            self._wait_until(self._first + len(self._marks) - 1)

    def _wait_until(self, number: int) -> None:
        self._lane.wait(self._marks[number - self._first])
        self._settle(number - self._first + 1)

    def _settle(self, count: int) -> None:
        """Nobody has to wait for the `count` oldest any more."""
        if count:
            del self._marks[:count]
            self._first += count
            self._last_of = {frame: number for frame, number in self._last_of.items() if number >= self._first}

"""A list of requests in the order of a key that never changes, so that the order never has to be computed again.

Ageing needs no clock either: a request of priority p that arrived in step s is served before one of q that arrived in
step t when `p * aging_steps + s < q * aging_steps + t`, and that does not depend on when one asks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from pagefleet_engine.request import Request

Key = tuple[int, int]


class RankedList:
    """Requests, smallest key first. Keys must be unique."""

    def __init__(self, key: Callable[[Request], Key]) -> None:
        self._key = key
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def after(self, index: int) -> Iterator[Request]:
        """Those that come after `index`, last first."""
        return (self._requests[at] for at in range(len(self._requests) - 1, index, -1))

    def add(self, request: Request) -> None:
        insort(self._requests, request, key=self._key)

    def discard(self, request: Request) -> bool:
        """Remove a request if it is here; whether it was."""
        at = bisect_left(self._requests, self._key(request), key=self._key)
        if at < len(self._requests) and self._requests[at] is request:
            del self._requests[at]
            return True
        return False

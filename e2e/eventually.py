"""Waiting in tests for something that becomes true, with what was last seen in the failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, timeout_s: float = 120, poll_s: float = 0.2) -> T:
    """Call `look` until it returns something true and return that. Raises AssertionError at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not seen within {timeout_s:.0f} s: {what}; last: {found!r}"
        time.sleep(poll_s)

"""Log lines that anybody can cause, written so that nobody can fill a disk with them."""

from __future__ import annotations

import logging
from collections.abc import Callable

_INTERVAL_S = 10.0


class SparingLog:
    """At most one warning per interval; the next one says how many were left out."""

    def __init__(self, log: logging.Logger, *, monotonic: Callable[[], float], interval_s: float = _INTERVAL_S) -> None:
        self._log = log
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._written_at: float | None = None
        self._num_left_out = 0

    def warning(self, message: str, *values: object) -> None:
        """As `Logger.warning`."""
        now = self._monotonic()
        if self._written_at is not None and now - self._written_at < self._interval_s:
            self._num_left_out += 1
            return
        more = f" ({self._num_left_out} more since the last line)" if self._num_left_out else ""
        self._log.warning(message + more, *values)
        self._written_at, self._num_left_out = now, 0

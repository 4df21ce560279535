"""Health by progress: an engine with work that finishes no step is not healthy, however well its process answers.

Pure; whoever asks brings the time. An idle engine is healthy, and so is one whose work has only just come.
"""

from __future__ import annotations

from pagefleet_engine.api import EngineStats

DEFAULT_BUDGET_S = 120.0


class Progress:
    """Remembers when the step counter last moved while there was work. Look at it at least once a second."""

    def __init__(self, *, budget_s: float = DEFAULT_BUDGET_S, now: float) -> None:
        self._budget_s = budget_s
        self._step = 0
        self._moved_at = now

    def stalled_for(self, stats: EngineStats, *, now: float) -> float | None:
        """Seconds without a finished step, when they exceed the budget; else None."""
        if stats.step_counter != self._step or not stats.has_work:
            self._step = stats.step_counter
            self._moved_at = now
        waited = now - self._moved_at
        return waited if waited > self._budget_s else None

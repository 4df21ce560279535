"""Ends a process that is stuck for good, with every thread's stack on standard error.

`/health` asks for a restart long before; this is for whoever runs the engine without a liveness probe, and for the
stacks, which a killed process does not leave.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
from collections.abc import Callable

from pagefleet_engine.api import EngineStats
from pagefleet_engine.server.progress import Progress

BUDGET_S = 300.0
_INTERVAL_S = 5.0
_BEAT_S = 1.0

STUCK_EXIT_CODE = 3


class Watchdog:
    """Looks from a thread of its own, which needs neither the event loop nor the step loop."""

    def __init__(
        self,
        *,
        stats: Callable[[], EngineStats | None],
        monotonic: Callable[[], float],
        give_up: Callable[[str], None],
        budget_s: float = BUDGET_S,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._stats = stats
        self._monotonic = monotonic
        self._give_up = give_up
        self._budget_s = budget_s
        self._interval_s = interval_s
        self._progress = Progress(budget_s=budget_s, now=monotonic())
        self._beat_at = monotonic()
        self._beating: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Call it on the event loop, whose beat is watched from now on."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._beating is not None:
            self._beating.cancel()

    def problem(self, now: float) -> str | None:
        """What is stuck, or None."""
        silent = now - self._beat_at
        if silent > self._budget_s:
            return f"the event loop has not run for {silent:.0f} s"
        stats = self._stats()
        stalled = None if stats is None else self._progress.stalled_for(stats, now=now)
        return None if stalled is None else f"no step has finished for {stalled:.0f} s although requests wait"

    def _beat(self) -> None:
        self._beat_at = self._monotonic()
        self._beating = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            problem = self.problem(self._monotonic())
            if problem is not None:
                self._give_up(problem)
                return


def end_process(reason: str) -> None:
    """Dump every stack and leave at once: no thread can be trusted to end in order."""
    print(f"pagefleet-engine: {reason}; giving up", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(STUCK_EXIT_CODE)

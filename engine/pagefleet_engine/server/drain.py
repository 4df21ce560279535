"""How an engine leaves: unready at once, late arrivals still served, then refused, running work finished or cut.

SIGTERM ── grace ──> refuse (503) ── nothing in flight, or the deadline, or a second signal ──> stop
"""

from __future__ import annotations

import asyncio
import logging
import signal

from pagefleet_engine.server.lifecycle import Lifecycle, Phase

log = logging.getLogger(__name__)


class StopSignals:
    """The first SIGTERM or SIGINT asks for a drain, the second one for a quick end."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.received)

    def received(self) -> None:
        """What a signal does; may be called by anything that wants the process to end."""
        (self.hurry if self.drain.is_set() else self.drain).set()


async def drain(lifecycle: Lifecycle, signals: StopSignals, *, grace_s: float, timeout_s: float) -> bool:
    """Returns when nothing is in flight any more (True), or when what is left has to be cut (False)."""
    lifecycle.phase = Phase.DRAINING
    log.info("draining: %d requests in flight, late ones are served for %g s", lifecycle.in_flight, grace_s)
    hurried = asyncio.create_task(signals.hurry.wait())
    await asyncio.wait({hurried}, timeout=grace_s)
    lifecycle.phase = Phase.REFUSING
    idle = asyncio.create_task(lifecycle.wait_idle())
    await asyncio.wait({hurried, idle}, timeout=max(0.0, timeout_s - grace_s), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    idle.cancel()
    if lifecycle.in_flight:
        log.warning("%d requests are cut: %s", lifecycle.in_flight, _why(signals, timeout_s))
    return lifecycle.in_flight == 0


def _why(signals: StopSignals, timeout_s: float) -> str:
    return "a second signal came" if signals.hurry.is_set() else f"--drain-timeout {timeout_s:g} s has passed"

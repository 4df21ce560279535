"""How an engine leaves: unready at once, late arrivals still served, then refused, running work finished or cut.

    begin ── grace ──> refuse (503) ── a moment, then nothing in flight ──> stop
                                    ── the deadline, or a second signal ──> stop

A drain may begin before SIGTERM, by the control API, and can be cancelled until SIGTERM comes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.lifecycle import Lifecycle, Phase

log = logging.getLogger(__name__)


_LINGER_S = 0.2
"""From the first refusal until the listener may close: who connected before it is accepted and answered by then."""


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


class Drain:
    """Moves the life cycle through a drain. Belongs to the event loop."""

    def __init__(self, lifecycle: Lifecycle, *, grace_s: float, linger_s: float = _LINGER_S) -> None:
        self._lifecycle = lifecycle
        self._grace_s = grace_s
        self._linger_s = linger_s
        self._timer: asyncio.TimerHandle | None = None
        self._refusing = asyncio.Event()
        self._is_final = False

    def begin(self) -> None:
        """No new traffic from now on; no effect on a drain under way."""
        if self._lifecycle.closes_connections:
            return
        self._lifecycle.phase = Phase.DRAINING
        self._timer = asyncio.get_running_loop().call_later(self._grace_s, self.refuse)
        in_flight = self._lifecycle.in_flight
        log.info("draining: %d requests in flight, late ones are served for %g s", in_flight, self._grace_s)

    def refuse(self) -> None:
        """Late arrivals get 503 from now on."""
        self._stop_timer()
        self._lifecycle.phase = Phase.REFUSING
        self._refusing.set()

    def cancel(self) -> None:
        """Take new traffic again; no effect without a drain. Raises `ApiError` (409) when the process is ending."""
        if self._is_final:
            raise invalid("the process is ending: its drain cannot be cancelled", code="ending", status=409)
        if self._lifecycle.closes_connections:
            self._stop_timer()
            self._refusing.clear()
            self._lifecycle.stay()
            log.info("the drain was cancelled")

    async def leave(self, signals: StopSignals, *, timeout_s: float) -> bool:
        """The drain that ends the process, `timeout_s` from now or by the end of the grace, whatever is later.

        True when nothing is in flight any more, False when what is left has to be cut.
        """
        self._is_final = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        self.begin()
        await _first_of(signals.hurry.wait(), self._refusing.wait(), timeout_s=None)
        self.refuse()
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        await _first_of(signals.hurry.wait(), self._until_quiet(), timeout_s=left_s)
        if self._lifecycle.in_flight:
            why = "a second signal came" if signals.hurry.is_set() else f"--drain-timeout {timeout_s:g} s has passed"
            log.warning("%d requests are cut: %s", self._lifecycle.in_flight, why)
        return self._lifecycle.in_flight == 0

    async def _until_quiet(self) -> None:
        await asyncio.sleep(self._linger_s)
        await self._lifecycle.wait_idle()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _first_of(*waits: Coroutine[Any, Any, object], timeout_s: float | None) -> None:
    """Returns when one of them does, or after the time-out; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()

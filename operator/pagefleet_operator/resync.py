"""The loop that cannot die: every so often it looks at every service, whatever the watches have seen.

It reads in bulk and puts into the queue only what a reconcile would change, or would find gone, so a thousand settled
services cost four reads. Its heartbeat is what liveness follows. An API server that does not answer costs one line per
round, not the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from datetime import datetime

from pagefleet_operator.cluster import Cluster
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.errors import OperatorError
from pagefleet_operator.gather import gather_all
from pagefleet_operator.health import Health
from pagefleet_operator.labels import Key
from pagefleet_operator.observe import Gathered, observe
from pagefleet_operator.plan import needs_work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """The loop, with everything it needs from outside."""

    cluster: Cluster
    add: Callable[[Key], None]
    health: Health
    clock: Callable[[], datetime]
    random: Callable[[], float]
    namespaces: tuple[str, ...]  # none: all
    period_s: float
    fleets: Fleets = field(default_factory=Fleets)

    async def run(self) -> None:
        """Run until cancelled. This is one of the two outermost loops, so it survives whatever a round raises."""
        while True:
            self.health.beat()
            try:
                await self.look_at_all()
            except OperatorError as error:
                logger.warning("resync: trying again in about %.0f s: %s", self.period_s, error)
            except Exception:
                logger.exception("resync: trying again in about %.0f s after an error of the operator", self.period_s)
            await asyncio.sleep(self.period_s * (0.75 + 0.5 * self.random()))

    async def look_at_all(self) -> None:
        """Add every service that needs work. Raises `OperatorError` when the cluster cannot be read."""
        for namespace in self.namespaces or (None,):
            turn, listed = self.fleets.take_turn(), set()
            for key, gathered in await gather_all(namespace, self.cluster):
                listed.add(key)
                if self._needs_work(key, gathered, turn):
                    self.add(key)
                await asyncio.sleep(0)  # a thousand services take a second, in which others have to run, too
            self._add_missing(namespace, listed)

    def _add_missing(self, namespace: str | None, listed: Set[Key]) -> None:
        """A known service that was not listed is gone, or newer than the list: a reconcile finds out which."""
        for key in self.fleets.observations.keys() - listed:
            if namespace in (None, key.namespace):
                self.add(key)

    def _needs_work(self, key: Key, gathered: Gathered, turn: int) -> bool:
        try:
            observed = observe(self.fleets.complete(key, gathered))
            self.fleets.saw(observed, turn)
            return needs_work(observed, self.clock())
        except Exception:
            # One object that cannot be understood must not hide the others; the queue reports it.
            return True

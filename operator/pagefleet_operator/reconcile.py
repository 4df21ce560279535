"""One reconcile: gather, observe, decide, apply, and the status once, if it differs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pagefleet_operator.apply import Applied, apply
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.engines import Engines
from pagefleet_operator.errors import ConflictError, NotFoundError, OperatorError
from pagefleet_operator.events import EventNote, build_event, notes_of_step
from pagefleet_operator.gather import gather
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.observe import Observation, observe, with_refusals
from pagefleet_operator.plan import Plan, decide
from pagefleet_operator.resources import EVENT, LLM_SERVICE
from pagefleet_operator.status import status_patch
from pagefleet_operator.steps import describe, verb

logger = logging.getLogger(__name__)
SOON = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciler:
    """`reconcile` with everything it needs from outside."""

    cluster: Cluster
    metrics: OperatorMetrics
    clock: Callable[[], datetime]
    identity: str  # names this process in events
    engines: Engines | None = None  # None: they are left alone
    fleets: Fleets = field(default_factory=Fleets)

    async def __call__(self, key: Key) -> timedelta | None:
        """Bring one service forward; returns when to look again, if time alone will change something.

        Raises `ApiError` and `UnreachableError` for what a later try may cure.
        """
        turn = self.fleets.take_turn()
        gathered = await gather(key, self.cluster, self.engines)
        if gathered is None:
            self.fleets.forget(key)
            return None
        observed, now = observe(self.fleets.complete(key, gathered)), self.clock()
        self.fleets.saw(observed, turn)
        plan = decide(observed, now)
        if plan.steps:
            logger.info("%s: %s", key, "; ".join(map(describe, plan.steps)))
        applied = await apply(plan.steps, key.namespace, self.cluster, self.engines)
        for step in applied.done:
            self.metrics.steps.labels(step=f"{verb(step)}_{step.resource.kind}").inc()
        if applied.ends:
            logger.info("%s: its namespace is being terminated, so nothing is made or told any more", key)
            return None
        return await self._report(observed, plan, applied, now)

    async def _report(self, observed: Observation, plan: Plan, applied: Applied, now: datetime) -> timedelta | None:
        """Status and events. What the API server refused is judged with the rest, hence the second look."""
        if applied.refusals:
            observed = with_refusals(observed, applied.refusals)
            plan = decide(observed, now)
        is_written = await self._write_status(observed, plan)
        notes = [note for step in applied.done for note in notes_of_step(step)]
        if is_written:
            notes += plan.events
        await self._write_events(observed, notes, now)
        return plan.requeue_after if is_written and not applied.stale else SOON

    async def _write_status(self, observed: Observation, plan: Plan) -> bool:
        """False when the object changed meanwhile: then the status is about something that is over."""
        patch = status_patch(observed.raw_status, plan.status) if plan.status is not None else None
        if patch is None:
            return True
        metadata = {"uid": observed.owner.uid, "resourceVersion": observed.resource_version}
        key = observed.owner.key
        try:
            body = {"metadata": metadata, "status": patch}
            await self.cluster.patch(LLM_SERVICE, key.namespace, key.name, body, subresource="status")
        except (ConflictError, NotFoundError):
            return False
        return True

    async def _write_events(self, observed: Observation, notes: Sequence[EventNote], now: datetime) -> None:
        """Events are for people: one that is lost costs nothing, and none may stop the work."""
        for note in notes:
            event = build_event(note, observed.owner, self.identity, now)
            try:
                await self.cluster.create(EVENT, event)
            except OperatorError as error:
                logger.warning("%s: event %s was not written: %s", observed.owner.key, note.reason, error)

"""The loop that looks at every engine every few seconds, and sets them to what the deciders want.

One of the outermost loops: it survives whatever one service raises, and one service never waits for another. It writes
nothing to the API server; where a look changes something that people or the fleet should know, it wakes the reconcile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pagefleet_operator.alerts import AlertBook
from pagefleet_operator.control.autoscalers import Autoscalers
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.control.service import Hints, Looked, ServiceState, begin, serving, step
from pagefleet_operator.control.setter import Setter
from pagefleet_operator.engines import EnginePod, Engines
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.observe import Observation, Wanted
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedies.precision.memory import Moment
from pagefleet_operator.remedies.readings import Readings, ScrapeFailed
from pagefleet_operator.remedies.scrape import parse_metrics
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import EngineStart

logger = logging.getLogger(__name__)
JITTER: Final = 0.1
MOST_AT_ONCE: Final = 64
"""Engines that are asked at the same time."""


@dataclass(kw_only=True)
class ControlLoop:
    """The loop, with everything it needs from outside."""

    fleets: Fleets
    engines: Engines
    autoscalers: Autoscalers
    alerts: AlertBook
    wake: Callable[[Key], None]  # reconcile this service soon
    metrics: OperatorMetrics
    monotonic: Callable[[], float]
    clock: Callable[[], datetime]
    random: Callable[[], float]
    settings: LoopSettings = field(default_factory=LoopSettings)
    _states: dict[Key, ServiceState] = field(default_factory=dict)
    _unset: dict[Key, dict[str, str]] = field(default_factory=dict)
    _again: dict[Key, float] = field(default_factory=dict)  # looks due before the next round, monotonic
    _hinted: set[Key] = field(default_factory=set)
    _hint: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._setter = Setter(engines=self.engines, metrics=self.metrics)
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.look_at(list(self.fleets.observations))
            self._forget()
            self._count_holds()
            jitter = 1 + JITTER * (2 * self.random() - 1)
            await self._pause(self.settings.look_every_s * jitter)

    def hint(self, key: Key) -> None:
        """Look at this service now."""
        self._hinted.add(key)
        self._hint.set()

    async def look_at(self, keys: Iterable[Key]) -> None:
        """One look at each of these services."""
        await asyncio.gather(*(self._guarded_look(key) for key in keys))

    async def _pause(self, seconds: float) -> None:
        """Wait, and look meanwhile at whatever is hinted at or due."""
        end = self.monotonic() + seconds
        while (now := self.monotonic()) < end:
            until = min((end, *self._again.values()))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hint.wait(), until - now)
            self._hint.clear()
            await self.look_at(self._take_due() & self.fleets.observations.keys())

    def _take_due(self) -> set[Key]:
        now = self.monotonic()
        due = {key for key, at_s in self._again.items() if at_s <= now} | self._hinted
        self._again = {key: at_s for key, at_s in self._again.items() if key not in due}
        self._hinted = set()
        return due

    async def _guarded_look(self, key: Key) -> None:
        try:
            await self._look(key)
        except Exception:
            # An outermost loop: what one service raises must not end the looks at the others.
            logger.exception("%s: the look at its engines failed", key)

    async def _look(self, key: Key) -> None:
        self._again.pop(key, None)
        observed = self.fleets.observations[key]
        if observed.deleting or not isinstance(observed.wanted, Wanted):
            return
        spec, pods = observed.wanted.spec, serving(observed)
        scrapes = dict(zip([pod.name for pod in pods], await asyncio.gather(*map(self._scrape, pods)), strict=True))
        now = Moment(self.monotonic(), self.clock())
        foreign = await self.autoscalers.find(key, now.monotonic) if spec.autoscaling is not None else None
        unset = self._unset.get(key, {})
        hints = Hints(alert=self.alerts.wish(key, now.monotonic), foreign_autoscaler=foreign, unset=unset)
        state = self._states.get(key)
        if state is None or state.uid != observed.owner.uid:
            state = begin(observed, spec, now)
        looked = step(state, observed, spec, scrapes, now, self.settings, hints)
        self._states[key] = looked.state
        if looked.alert_followed:
            self.alerts.fulfil(key, now.monotonic)
        if looked.again_after_s is not None:
            self._again[key] = now.monotonic + looked.again_after_s
        self._tell(key, state, looked.state)
        self._unset[key] = await self._set(observed, looked, now.monotonic)

    async def _scrape(self, pod: PodObservation) -> Readings | ScrapeFailed:
        async with self._slots:
            try:
                text = await self.engines.read_metrics(_engine(pod))
            except (EngineUnreachableError, EngineRefusedError) as error:
                self.metrics.scrapes.labels(result="failed").inc()
                return ScrapeFailed(str(error))
        parsed = parse_metrics(text)
        self.metrics.scrapes.labels(result="failed" if isinstance(parsed, ScrapeFailed) else "ok").inc()
        return parsed

    def _tell(self, key: Key, before: ServiceState, after: ServiceState) -> None:
        for decision in after.decisions:
            if decision in before.decisions:
                break
            logger.info("%s: %s %s: %s", key, decision.remedy, decision.reason, decision.message)
            labels = {"remedy": decision.remedy, "reason": decision.reason, "advisory": str(decision.advisory).lower()}
            self.metrics.decisions.labels(**labels).inc()
        if after.view is not None and after.view is not self.fleets.views.get(key):
            self.fleets.views[key] = after.view
            self.wake(key)

    async def _set(self, observed: Observation, looked: Looked, now_s: float) -> dict[str, str]:
        """Why each pod that could not be set could not."""
        pods = [pod for pod in observed.pods if pod.name in looked.targets]
        answers = await asyncio.gather(*(self._set_one(pod, looked, now_s) for pod in pods))
        return {pod.name: trouble for pod, trouble in zip(pods, answers, strict=True) if trouble is not None}

    async def _set_one(self, pod: PodObservation, looked: Looked, now_s: float) -> str | None:
        start, target = EngineStart(uid=pod.uid, restarts=pod.restarts), looked.targets[pod.name]
        async with self._slots:
            trouble = await self._setter.bring(_engine(pod), start, target, looked.reported[pod.name], now_s)
        if trouble is not None:
            logger.warning("%s: its configuration was not changed: %s", pod.name, trouble)
        return trouble

    def _forget(self) -> None:
        """What is gone needs no memory."""
        for key in self._states.keys() - self.fleets.observations.keys():
            del self._states[key]
            self._unset.pop(key, None)
        uids = {pod.uid for observed in self.fleets.observations.values() for pod in observed.pods}
        self._setter.keep_only(uids)

    def _count_holds(self) -> None:
        """Services by what they hold, for the metric; a hold of several pods counts once."""
        views = [state.view for state in self._states.values() if state.view is not None]
        held = Counter(kind for view in views for kind in {(hold.remedy, hold.reason) for hold in view.holds})
        self.metrics.holds.clear()
        for (remedy, reason), number in held.items():
            self.metrics.holds.labels(remedy=remedy, reason=reason).set(number)


def _engine(pod: PodObservation) -> EnginePod:
    return EnginePod(name=pod.name, uid=pod.uid, ip=pod.ip or "")

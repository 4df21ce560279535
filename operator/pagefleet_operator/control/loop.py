"""The loop that looks at every engine every few seconds, and sets them to what the deciders want.

One of the outermost loops: it survives whatever one service raises. Each service is followed by a task with a timer of
its own, so that none waits for another. It writes nothing to the API server; where a look changes something that people
or the fleet should know, it wakes the reconcile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pagefleet_operator.alerts import AlertBook
from pagefleet_operator.control.asking import Asking, engine_pod
from pagefleet_operator.control.autoscalers import Autoscalers
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.control.service import Hints, Looked, ServiceState, begin, serving, step
from pagefleet_operator.control.setter import Setter
from pagefleet_operator.engines import Engines
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.observe import Observation, Wanted
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedies.precision.memory import Moment
from pagefleet_operator.remedies.readings import ScrapeFailed
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import EngineStart

logger = logging.getLogger(__name__)
JITTER: Final = 0.1
MOST_SET_AT_ONCE: Final = 128
MOST_SET_OF_ONE_SERVICE: Final = 32


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
    _hints: dict[Key, asyncio.Event] = field(default_factory=dict)  # of the services that are followed

    def __post_init__(self) -> None:
        self._setter = Setter(engines=self.engines, metrics=self.metrics)
        self._asking = Asking(
            engines=self.engines, metrics=self.metrics, random=self.random, within_s=self.settings.answer_within_s
        )
        self._set_slots = asyncio.Semaphore(MOST_SET_AT_ONCE)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as followers:
                while True:
                    for key in self.fleets.observations.keys() - self._hints.keys():
                        self._hints[key] = asyncio.Event()
                        followers.create_task(self._follow(key))
                    self._forget()
                    self._count_holds()
                    await asyncio.sleep(self.settings.look_every_s)
        finally:
            await self.autoscalers.close()

    def hint(self, key: Key) -> None:
        """Look at this service now; once more if it is looked at just now."""
        if key in self._hints:
            self._hints[key].set()

    async def look_at(self, keys: Iterable[Key]) -> None:
        """One look at each of these services."""
        await asyncio.gather(*(self._guarded_look(key) for key in keys))

    async def _follow(self, key: Key) -> None:
        """Look at one service for as long as it is there."""
        hint = self._hints[key]
        while key in self.fleets.observations:
            hint.clear()
            jitter = 1 + JITTER * (2 * self.random() - 1)
            usual_s = self.monotonic() + self.settings.look_every_s * jitter
            sooner_s = await self._guarded_look(key)
            due_s = usual_s if sooner_s is None else min(usual_s, sooner_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), max(0.0, due_s - self.monotonic()))
        del self._hints[key]

    async def _guarded_look(self, key: Key) -> float | None:
        try:
            return await self._look(key)
        except Exception:
            # An outermost loop: what one service raises must not end the looks at the others.
            logger.exception("%s: the look at its engines failed", key)
            return None

    async def _look(self, key: Key) -> float | None:
        """One look; returns when the next one is due, on the monotonic clock, if the usual pace is too slow."""
        observed = self.fleets.observations[key]
        if observed.deleting or not isinstance(observed.wanted, Wanted):
            return None
        spec = observed.wanted.spec
        scrapes = await self._asking.scrape(serving(observed))
        latest = self.fleets.observations.get(key)
        if latest is None or latest.owner.uid != observed.owner.uid:
            return None  # it was deleted meanwhile
        now = Moment(self.monotonic(), self.clock())
        foreign = self.autoscalers.find(key, now.monotonic) if spec.autoscaling is not None else None
        unset = self._unset.get(key, {})
        hints = Hints(alert=self.alerts.wish(key, now.monotonic), foreign_autoscaler=foreign, unset=unset)
        state = self._states.get(key)
        if state is None or state.uid != observed.owner.uid:
            state = begin(observed, spec, now)
        looked = step(state, observed, spec, scrapes, now, self.settings, hints)
        self._states[key] = looked.state
        if looked.alert_followed:
            self.alerts.fulfil(key, now.monotonic)
        self._tell(key, looked)
        silent = {name for name, scraped in scrapes.items() if isinstance(scraped, ScrapeFailed)}
        still_unset = {name: why for name, why in unset.items() if name in silent}
        self._unset[key] = still_unset | await self._set(observed, looked, silent, now.monotonic)
        return None if looked.again_after_s is None else now.monotonic + looked.again_after_s

    def _tell(self, key: Key, looked: Looked) -> None:
        for decision in looked.decisions:
            logger.info("%s: %s %s: %s", key, decision.remedy, decision.reason, decision.message)
            labels = {"remedy": decision.remedy, "reason": decision.reason, "advisory": str(decision.advisory).lower()}
            self.metrics.decisions.labels(**labels).inc()
        view = looked.state.view
        if view is not None and view is not self.fleets.views.get(key):
            self.fleets.views[key] = view
            self.wake(key)

    async def _set(self, observed: Observation, looked: Looked, silent: Set[str], now_s: float) -> dict[str, str]:
        """Why each pod that could not be set could not. Who has just not answered is not asked again."""
        pods = [pod for pod in observed.pods if pod.name in looked.targets and pod.name not in silent]
        own = asyncio.Semaphore(MOST_SET_OF_ONE_SERVICE)
        answers = await asyncio.gather(*(self._set_one(pod, looked, own, now_s) for pod in pods))
        return {pod.name: trouble for pod, trouble in zip(pods, answers, strict=True) if trouble is not None}

    async def _set_one(self, pod: PodObservation, looked: Looked, own: asyncio.Semaphore, now_s: float) -> str | None:
        start, target = EngineStart(uid=pod.uid, restarts=pod.restarts), looked.targets[pod.name]
        within_s = self.settings.answer_within_s
        try:
            async with asyncio.timeout(within_s), own, self._set_slots:
                trouble = await self._setter.bring(engine_pod(pod), start, target, looked.reported[pod.name], now_s)
        except TimeoutError:
            self.metrics.changes.labels(result="unreachable").inc()
            trouble = f"pod {pod.name}: its control port gave no full answer within {within_s:g} s"
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
        self._asking.keep_only(uids)

    def _count_holds(self) -> None:
        """Services by what they hold, for the metric; a hold of several pods counts once."""
        views = [state.view for state in self._states.values() if state.view is not None]
        held = Counter(kind for view in views for kind in {(hold.remedy, hold.reason) for hold in view.holds})
        self.metrics.holds.clear()
        for (remedy, reason), number in held.items():
            self.metrics.holds.labels(remedy=remedy, reason=reason).set(number)

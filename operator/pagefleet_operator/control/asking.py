"""Asks all engines of a service at once, such that engines that do not answer cost the others nothing.

An engine that did not answer the last time waits for one of a few slots of its own kind, of which one service has few.
How long an engine may take includes the wait for its slot, which may be half of it, so asking never takes longer than
that, however many engines hang. Nothing is tried twice: the next look asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from pagefleet_operator.engines import EnginePod, Engines
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedies.readings import Readings, ScrapeFailed
from pagefleet_operator.remedies.scrape import parse_metrics

MOST_AT_ONCE: Final = 192
MOST_OF_ONE_SERVICE: Final = 64
MOST_SILENT: Final = 128
MOST_SILENT_OF_ONE_SERVICE: Final = 16


@dataclass(frozen=True, slots=True)
class Slots:
    """A bound over all services, and what one service may have of it."""

    all: asyncio.Semaphore
    of_one: int


@dataclass(kw_only=True)
class Asking:
    """Scrapes; one `scrape` at a time for each service."""

    engines: Engines
    metrics: OperatorMetrics
    random: Callable[[], float]
    within_s: float  # for an engine's whole answer, with the wait for its turn
    _silent: set[str] = field(default_factory=set)  # UIDs of pods that did not answer when they were asked last

    def __post_init__(self) -> None:
        self._slots = {
            False: Slots(asyncio.Semaphore(MOST_AT_ONCE), MOST_OF_ONE_SERVICE),
            True: Slots(asyncio.Semaphore(MOST_SILENT), MOST_SILENT_OF_ONE_SERVICE),
        }

    async def scrape(self, pods: Sequence[PodObservation]) -> dict[str, Readings | ScrapeFailed]:
        """What each of these pods of one service says now, by name."""
        own = {silent: asyncio.Semaphore(slots.of_one) for silent, slots in self._slots.items()}
        order = sorted(pods, key=lambda _: self.random())  # so that each silent one gets its turn some time
        found = await asyncio.gather(*(self._scrape_one(pod, own[pod.uid in self._silent]) for pod in order))
        return {pod.name: scraped for pod, scraped in zip(order, found, strict=True)}

    def keep_only(self, uids: set[str]) -> None:
        """Forget the pods that are gone."""
        self._silent &= uids

    async def _scrape_one(self, pod: PodObservation, own: asyncio.Semaphore) -> Readings | ScrapeFailed:
        answer = await self._ask(pod, own)
        # In a thread: a long answer takes a tenth of a second, in which the loops of the process must go on.
        found = await asyncio.to_thread(parse_metrics, answer) if isinstance(answer, str) else answer
        self.metrics.scrapes.labels(result="failed" if isinstance(found, ScrapeFailed) else "ok").inc()
        return found

    async def _ask(self, pod: PodObservation, own: asyncio.Semaphore) -> str | ScrapeFailed:
        slots, began_s = self._slots[pod.uid in self._silent], asyncio.get_running_loop().time()
        async with AsyncExitStack() as turns:
            try:
                async with asyncio.timeout_at(began_s + self.within_s / 2):
                    await turns.enter_async_context(own)
                    await turns.enter_async_context(slots.all)
            except TimeoutError:
                return ScrapeFailed(f"pod {pod.name}: was not asked: too many engines do not answer")
            return await self._ask_now(pod, began_s + self.within_s)

    async def _ask_now(self, pod: PodObservation, until_s: float) -> str | ScrapeFailed:
        try:
            async with asyncio.timeout_at(until_s):
                text = await self.engines.read_metrics(engine_pod(pod))
        except TimeoutError:
            problem = f"pod {pod.name}: no full answer within {self.within_s:g} s"
        except (EngineUnreachableError, EngineRefusedError) as error:
            problem = str(error)
        else:
            self._silent.discard(pod.uid)
            return text
        self._silent.add(pod.uid)
        return ScrapeFailed(problem)


def engine_pod(pod: PodObservation) -> EnginePod:
    """Where the pod's engine is."""
    return EnginePod(name=pod.name, uid=pod.uid, ip=pod.ip or "")

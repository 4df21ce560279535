"""Sets engines to what is wanted: one change at a time per engine, on the generation that was read last.

The configuration is read when an engine is new or was restarted, when it reports another cap or length than it was set
to, and once a minute, since routes are in no metric. Otherwise the answer to the last change is as good.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from pagefleet_engine.contract.control import RuntimeConfig
from pagefleet_operator.control.targets import Target, change_for
from pagefleet_operator.engines import EnginePod, Engines
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError, GenerationConflictError
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.remedies.window import EngineStart

logger = logging.getLogger(__name__)
READ_EVERY_S: Final = 60.0
"""How old what is known of a configuration may be: somebody else may have changed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What an engine said in the scrape of this look; None: it did not, or not credibly."""

    cap: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was last read of one engine."""

    start: EngineStart
    config: RuntimeConfig
    read_s: float  # monotonic

    def is_good(self, start: EngineStart, reported: Reported, now_s: float) -> bool:
        """Whether it may be taken for what is in force."""
        return (
            self.start == start
            and now_s - self.read_s < READ_EVERY_S
            and reported.cap in (None, self.config.cap)
            and reported.max_model_len in (None, self.config.max_model_len)
        )


@dataclass(slots=True, kw_only=True)
class Setter:
    """The only place that changes a running engine's configuration."""

    engines: Engines
    metrics: OperatorMetrics
    _known: dict[str, Known] = field(default_factory=dict)  # by pod UID

    async def bring(
        self, pod: EnginePod, start: EngineStart, target: Target, reported: Reported, now_s: float
    ) -> str | None:
        """Bring one engine to its target; returns why that failed, in one line, or None. `now_s` is monotonic."""
        try:
            await self._bring(pod, start, target, reported, now_s)
        except GenerationConflictError as error:
            self._known.pop(pod.uid, None)
            return self._failed("conflict", error)
        except EngineRefusedError as error:
            self._known.pop(pod.uid, None)
            return self._failed("refused", error)
        except EngineUnreachableError as error:
            self._known.pop(pod.uid, None)
            return self._failed("unreachable", error)
        return None

    def keep_only(self, uids: set[str]) -> None:
        """Forget the pods that are gone."""
        for uid in self._known.keys() - uids:
            del self._known[uid]

    async def _bring(
        self, pod: EnginePod, start: EngineStart, target: Target, reported: Reported, now_s: float
    ) -> None:
        known = self._known.get(pod.uid)
        if known is None or not known.is_good(start, reported, now_s):
            known = await self._read(pod, start, known, now_s)
        change = change_for(known.config, target)
        if change is not None:
            config = (await self.engines.change_config(pod, change)).new
            known = Known(start=start, config=config, read_s=now_s)
            self.metrics.changes.labels(result="ok").inc()
        self._known[pod.uid] = known

    async def _read(self, pod: EnginePod, start: EngineStart, before: Known | None, now_s: float) -> Known:
        config = await self.engines.read_config(pod)
        if before is not None and before.start == start and before.config != config:
            self.metrics.drifts.inc()
            old, new = before.config.generation, config.generation
            logger.warning("%s: somebody else changed its configuration from generation %d to %d", pod.name, old, new)
        return Known(start=start, config=config, read_s=now_s)

    def _failed(self, result: str, error: Exception) -> str:
        self.metrics.changes.labels(result=result).inc()
        return str(error)

"""Sets engines to what is wanted: one change at a time per engine, on the generation that was read last.

The configuration is read when an engine is new or was restarted, or when somebody else has changed it; otherwise the
answer to the last change is as good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_engine.contract.control import RuntimeConfig
from pagefleet_operator.control.targets import Target, change_for
from pagefleet_operator.engines import EnginePod, Engines
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError, GenerationConflictError
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.remedies.window import EngineStart


@dataclass(slots=True, kw_only=True)
class Setter:
    """The only place that changes a running engine's configuration."""

    engines: Engines
    metrics: OperatorMetrics
    _known: dict[str, tuple[EngineStart, RuntimeConfig]] = field(default_factory=dict)  # by pod UID

    async def bring(self, pod: EnginePod, start: EngineStart, target: Target) -> str | None:
        """Bring one engine to its target; returns why that failed, in one line, or None."""
        try:
            await self._bring(pod, start, target)
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

    async def _bring(self, pod: EnginePod, start: EngineStart, target: Target) -> None:
        known_start, config = self._known.get(pod.uid, (None, None))
        if config is None or known_start != start:
            config = await self.engines.read_config(pod)
        change = change_for(config, target)
        if change is not None:
            config = (await self.engines.change_config(pod, change)).new
            self.metrics.changes.labels(result="ok").inc()
        self._known[pod.uid] = start, config

    def _failed(self, result: str, error: Exception) -> str:
        self.metrics.changes.labels(result=result).inc()
        return str(error)

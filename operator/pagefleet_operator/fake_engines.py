"""An in-memory `Engines` for tests, with what the operator relies on: generations, bounds, drains, failures.

It serves no requests: a test says what an engine reports. A pod is known by its UID, as for the real one; a pod that
was never added does not answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pagefleet_engine.contract.control import (
    DEFAULT_ROUTE,
    EngineState,
    RouteConfig,
    RuntimeAnswer,
    RuntimeChange,
    RuntimeConfig,
)
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    GenerationConflictError,
    OperatorError,
)

_CHANGEABLE = ("cap", "max_model_len", "max_num_batched_tokens", "routes")


@dataclass
class FakeEngine:
    """One engine: what it was started with, what is in force, and what it reports."""

    config: RuntimeConfig
    capacity: int
    longest: int
    state: EngineState
    metrics: str = ""
    is_ending: bool = False
    """SIGTERM has come: a drain can no longer be cancelled."""


@dataclass
class FakeEngines:
    """The `Engines` Protocol over a dict by pod UID."""

    engines: dict[str, FakeEngine] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Method and pod name of every call, in order."""
    changes: list[tuple[str, RuntimeChange]] = field(default_factory=list)
    """Pod name and change of every change that was accepted."""
    failures: deque[tuple[str, str, OperatorError]] = field(default_factory=deque)
    unreachable: set[str] = field(default_factory=set)
    """UIDs of pods that do not answer."""

    # What a test does to the engines

    def add(
        self,
        uid: str,
        *,
        cap: int = 32,
        capacity: int = 32,
        max_model_len: int = 4096,
        routes: tuple[RouteConfig, ...] | None = None,
        metrics: str = "",
    ) -> FakeEngine:
        """An engine that has just become ready; replaces one that was there, as a restart does."""
        default = RouteConfig(name=DEFAULT_ROUTE, model="smollm2", precision=Precision.FP8_E4M3)
        config = RuntimeConfig(
            generation=1,
            cap=cap,
            max_model_len=max_model_len,
            max_num_batched_tokens=512,
            routes=routes or (default,),
        )
        engine = FakeEngine(
            config=config, capacity=capacity, longest=max_model_len, state=engine_state(), metrics=metrics
        )
        self.engines[uid] = engine
        return engine

    def set_metrics(self, uid: str, text: str) -> None:
        """What the pod's next scrape answers."""
        self.engines[uid].metrics = text

    def set_state(self, uid: str, **values: int | str) -> None:
        """Merge these into what the pod says of itself: `in_flight=0`."""
        engine = self.engines[uid]
        engine.state = engine.state.model_copy(update=values)

    def fail_next(self, method: str, uid: str, error: OperatorError) -> None:
        """Let the next call of this method for this pod fail."""
        self.failures.append((method, uid, error))

    # The Protocol

    async def read_metrics(self, pod: EnginePod) -> str:
        return self._called("read_metrics", pod).metrics

    async def read_config(self, pod: EnginePod) -> RuntimeConfig:
        return self._called("read_config", pod).config

    async def change_config(self, pod: EnginePod, change: RuntimeChange) -> RuntimeAnswer:
        engine = self._called("change_config", pod)
        old = engine.config
        _check_bounds(pod, engine, change)
        values = {name: value for name in _CHANGEABLE if (value := getattr(change, name)) is not None}
        new = old.model_copy(update=values)
        if new != old:
            if change.expected_generation != old.generation:
                raise GenerationConflictError(409, f"pod {pod.name}: the configuration is at {old.generation}")
            engine.config = new = new.model_copy(update={"generation": old.generation + 1})
            self.changes.append((pod.name, change))
        return RuntimeAnswer(old=old, new=new, running=engine.state.running)

    async def read_state(self, pod: EnginePod) -> EngineState:
        return self._called("read_state", pod).state

    async def drain(self, pod: EnginePod, *, refuse: bool) -> EngineState:
        engine = self._called("drain", pod)
        if refuse or engine.state.phase != "refusing":
            engine.state = engine.state.model_copy(update={"phase": "refusing" if refuse else "draining"})
        return engine.state

    async def cancel_drain(self, pod: EnginePod) -> EngineState:
        engine = self._called("cancel_drain", pod)
        if engine.is_ending:
            raise EngineRefusedError(409, f"pod {pod.name}: the process ends")
        if engine.state.phase in ("draining", "refusing"):
            engine.state = engine.state.model_copy(update={"phase": "ready"})
        return engine.state

    # Inside

    def _called(self, method: str, pod: EnginePod) -> FakeEngine:
        self.calls.append((method, pod.name))
        for failure in self.failures:
            if failure[:2] == (method, pod.uid):
                self.failures.remove(failure)
                raise failure[2]
        if pod.uid not in self.engines or pod.uid in self.unreachable:
            raise EngineUnreachableError(f"pod {pod.name}: no answer")
        return self.engines[pod.uid]


def engine_state(phase: str = "ready", **counts: int) -> EngineState:
    """An engine that is idle unless told otherwise."""
    zero = {"in_flight": 0, "running": 0, "waiting": 0, "swapped": 0}
    return EngineState(phase=phase, **(zero | counts))


def _check_bounds(pod: EnginePod, engine: FakeEngine, change: RuntimeChange) -> None:
    """As the real one: a change out of bounds, or one that loses or reorders routes' names, changes nothing."""
    if change.cap is not None and not 1 <= change.cap <= engine.capacity:
        raise EngineRefusedError(400, f"pod {pod.name}: cap: {change.cap}: must be 1 to {engine.capacity}")
    if change.max_model_len is not None and not 16 <= change.max_model_len <= engine.longest:
        message = f"max_model_len: {change.max_model_len}: must be 16 to {engine.longest}"
        raise EngineRefusedError(400, f"pod {pod.name}: {message}")
    if change.routes is not None:
        missing = {route.model for route in engine.config.routes} - {route.model for route in change.routes}
        if missing:
            raise EngineRefusedError(400, f"pod {pod.name}: routes: {', '.join(sorted(missing))} would be lost")

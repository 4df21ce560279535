"""The control API of the simulator's engines, so that the `Setter` that ships sets them: generations, bounds, drift."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pagefleet_engine.contract.control import DEFAULT_ROUTE, RouteConfig, RuntimeAnswer, RuntimeConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError, GenerationConflictError

ROUTES = (RouteConfig(name=DEFAULT_ROUTE, model="m", precision=Precision.FP8_E4M3),)


class SimulatedEngines:
    """As much of `Engines` as the `Setter` uses; a pod's UID is the name of its engine."""

    def __init__(self, find):
        self.find = find

    async def read_config(self, pod):
        engine = self.find(pod.uid)
        if engine is None:
            raise EngineUnreachableError(f"pod {pod.name}: no answer")
        return RuntimeConfig(
            generation=engine.generation,
            cap=engine.cap,
            max_model_len=engine.max_model_len,
            max_num_batched_tokens=512,
            routes=ROUTES,
        )

    async def change_config(self, pod, change):
        old, engine = await self.read_config(pod), self.find(pod.uid)
        if change.expected_generation != engine.generation:
            raise GenerationConflictError(409, f"pod {pod.name}: the configuration is at {engine.generation}")
        if change.cap is not None and not 1 <= change.cap <= engine.capacity:
            raise EngineRefusedError(400, f"pod {pod.name}: cap: must be 1 to {engine.capacity}")
        engine.change(cap=change.cap, max_model_len=change.max_model_len)
        return RuntimeAnswer(old=old, new=await self.read_config(pod), running=len(engine.running))


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for something")

"""What the operator asks of running engines, as one small Protocol.

Its real implementation is `engine_client.EngineClient`, its fake one `fake_engines.FakeEngines`. A pod is addressed by
its IP and named by its UID, which is the audience of the token that the operator signs for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pagefleet_engine.contract.control import EngineState, RuntimeAnswer, RuntimeChange, RuntimeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePod:
    """Where one engine is."""

    name: str
    uid: str
    ip: str


class Engines(Protocol):
    """Every method may raise `EngineUnreachableError` and `EngineRefusedError`."""

    async def read_metrics(self, pod: EnginePod) -> str:
        """The metrics that remedies need, in the text format of Prometheus."""

    async def read_config(self, pod: EnginePod) -> RuntimeConfig:
        """What is in force."""

    async def change_config(self, pod: EnginePod, change: RuntimeChange) -> RuntimeAnswer:
        """Change it. Raises `GenerationConflictError` when somebody has changed it since it was read."""

    async def read_state(self, pod: EnginePod) -> EngineState:
        """Phase and requests in flight."""

    async def drain(self, pod: EnginePod, *, refuse: bool) -> EngineState:
        """Begin a drain, or go on with it: with `refuse` late arrivals get 503 from now on. Idempotent."""

    async def cancel_drain(self, pod: EnginePod) -> EngineState:
        """Serve on as before. Idempotent."""

"""The control API on its own port: what the operator may ask of a running engine, and what it answers.

    GET    /v1/runtime_config   RuntimeConfig
    PATCH  /v1/runtime_config   RuntimeChange -> RuntimeAnswer; 409 when somebody else has changed it since
    GET    /v1/state            EngineState
    POST   /v1/drain            DrainRequest -> EngineState
    DELETE /v1/drain            EngineState

A change is validated as a whole and takes effect between two steps. Asking for what is already in force changes
nothing and succeeds, so a change whose answer was lost can be sent again.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

RUNTIME_CONFIG: Final = "/v1/runtime_config"
STATE: Final = "/v1/state"
DRAIN: Final = "/v1/drain"

POD_UID_VARIABLE: Final = "PAGEFLEET_POD_UID"
"""Environment variable with the pod's UID, which control tokens name as their audience."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class RuntimeConfig(_Model):
    """What can be changed on a running engine, and the generation that counts its changes."""

    generation: int = Field(ge=1)
    cap: int
    """Most requests that may run at once, 1 to the capacity."""
    max_model_len: int
    """Longest prompt plus answer of new requests, in tokens."""
    max_num_batched_tokens: int
    """Token budget of one step."""


class RuntimeChange(_Model):
    """Fields that are absent stay as they are."""

    expected_generation: int = Field(ge=1)
    """Generation that the change was decided on."""
    cap: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None


class RuntimeAnswer(_Model):
    """The change as it took effect."""

    old: RuntimeConfig
    new: RuntimeConfig
    running: int
    """Requests that run now; above the new cap until enough of them have finished."""


class DrainRequest(_Model):
    """How to begin, or go on with, a drain."""

    refuse: bool = False
    """Late arrivals get 503 from now on: the endpoints have dropped this pod."""


class EngineState(_Model):
    """Where the engine is, for whoever wants to delete its pod."""

    phase: str
    """loading, ready, draining or refusing."""
    in_flight: int
    """HTTP requests that are being served."""
    running: int
    waiting: int
    swapped: int

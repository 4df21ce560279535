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

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pagefleet_engine.contract.precision import Precision

RUNTIME_CONFIG: Final = "/v1/runtime_config"
STATE: Final = "/v1/state"
DRAIN: Final = "/v1/drain"

POD_UID_VARIABLE: Final = "PAGEFLEET_POD_UID"
"""Environment variable with the pod's UID, which control tokens name as their audience."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


DEFAULT_ROUTE: Final = "default"
"""The route of requests for the model itself."""
MAX_ROUTES: Final = 17


class RouteConfig(_Model):
    """One served alias of the model: how its requests keep their KV, and whether their answers are checked."""

    name: str = Field(min_length=1, max_length=63)
    """The route's label in metrics."""
    model: str = Field(min_length=1, max_length=128)
    """The alias that clients send."""
    structured: Literal["off", "validate"] = "off"
    """validate: each finished answer is checked against its request's schema, and counted."""
    precision: Annotated[Precision, Field(strict=False)]
    """Of the sealed frames of new requests."""
    control_precision: Annotated[Precision, Field(strict=False)] = Precision.BF16
    """Of the control share, and of requests longer than `max_context`."""
    control_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the requests that run in `control_precision`, to compare with."""
    max_context: int | None = Field(default=None, ge=1)
    """Requests whose prompt plus `max_tokens` is longer run in `control_precision` from the start."""
    allow_demotion: bool = False
    """Sealed BF16 frames may become FP8 under pressure; never those of the control share."""


Routes = Annotated[tuple[RouteConfig, ...], Field(strict=False, min_length=1, max_length=MAX_ROUTES)]


class RuntimeStart(_Model):
    """What a pod's annotation says an engine should start with; fields that are absent follow the command line."""

    cap: int | None = None
    max_model_len: int | None = None
    routes: Routes | None = None


class RuntimeConfig(_Model):
    """What can be changed on a running engine, and the generation that counts its changes."""

    generation: int = Field(ge=1)
    cap: int
    """Most requests that may run at once, 1 to the capacity."""
    max_model_len: int
    """Longest prompt plus answer of new requests, in tokens."""
    max_num_batched_tokens: int
    """Token budget of one step."""
    routes: Routes
    """Every route, `default` first."""


class RuntimeChange(_Model):
    """Fields that are absent stay as they are."""

    expected_generation: int = Field(ge=1)
    """Generation that the change was decided on."""
    cap: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    routes: Routes | None = None
    """All of them: one that is missing is refused, since its clients would lose their alias."""


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

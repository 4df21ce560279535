"""What `decide` is given and what it answers, for one route and one look."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.conditions import ConditionStatus, Reason
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec, Mode
from pagefleet_operator.api.status import Decision
from pagefleet_operator.remedies.precision.counts import Increments
from pagefleet_operator.remedies.precision.families import Family
from pagefleet_operator.remedies.precision.memory import Memory, Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """The bytes for the route in its fallback precision are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEnough:
    """They are not."""

    needed_share: float  # of the pool, once the route runs in the fallback precision
    allowed_share: float


Room = Enough | NotEnough


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One route, now."""

    route: str
    spec: KvPrecisionSpec
    policy: Mode  # of the spec, filled in where it is absent there
    control_share: float  # likewise, 0..1
    engine: Precision  # what the engine was started with
    counts: Increments  # unconstrained answers of one precision, since the last look
    room: Room
    now: Moment
    in_flight: int = 0  # requests that run or wait: they began under the settings of before
    family: Family | None = None  # the model's, where it is a known one
    paused: bool = False  # nothing is decided, and nothing counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the route's new requests should run in. Requests that run keep what they began with."""

    precision: Precision
    control_precision: Precision
    control_share: float  # 0..1
    allow_demotion: bool  # never while the route is in fallback


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What the route says about the condition PrecisionFallback."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What follows from one look."""

    memory: Memory
    wanted: Wanted
    decisions: tuple[Decision, ...]
    fact: Fact
    what_next: str  # what would have to happen for the next change

"""`status` of an LLMService: what the operator saw and did.

Every list is bounded; a number that nobody knows is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, ValidationError

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.base import ApiModel, MapList
from pagefleet_operator.api.conditions import Condition, ConditionType
from pagefleet_operator.api.scalars import MAX_REPLICAS, ShortText, Text

MAX_DECISIONS: Final = 10
MAX_NEXT: Final = 32
Count = Annotated[int, Field(ge=0)]
Ratio = Annotated[str, Field(max_length=16)]
"""A number with a fraction, as text: floats do not survive every client."""


class StatusModel(ApiModel):
    """A part of the status; fields of other versions are ignored."""

    model_config = ConfigDict(extra="ignore")


class PodState(StrEnum):
    """Where a pod is in its life, as `status.pods` shows it."""

    PENDING = "Pending"
    STARTING = "Starting"
    SERVING = "Serving"
    DRAINING = "Draining"
    FAILING = "Failing"
    TERMINATING = "Terminating"


class Remedy(StrEnum):
    """The three things that the operator does about a load, and doing nothing on purpose."""

    TUNE = "Tune"
    SCALE = "Scale"
    PRECISION = "Precision"
    HOLD = "Hold"


class RouteState(StrEnum):
    """Where a route's precision policy stands."""

    NORMAL = "Normal"
    TESTING = "Testing"
    FALLBACK = "Fallback"
    PROBING = "Probing"
    LATCHED = "Latched"


class TuningStatus(StatusModel):
    """The live settings of the engines."""

    max_num_seqs: Count | None = None
    """The running cap that the engines are meant to have; where nothing tunes them, the one that they have."""
    capacity: Count | None = None
    """The highest cap that they can have without being replaced."""
    max_model_len: Count | None = None
    """The longest prompt plus answer of new requests."""
    last_change_time: datetime | None = None
    """When one of them last changed."""


class KvCacheStatus(StatusModel):
    """The KV pools, over all serving pods."""

    precision: Precision | None = None
    """The precision of sealed frames."""
    usage: Ratio | None = None
    """The mean share of frames in use, in steps of 0.05."""


class LoadStatus(StatusModel):
    """Requests, over all serving pods; rounded, so that a steady service writes no status."""

    running: Count | None = None
    """Running requests."""
    waiting: Count | None = None
    """Waiting requests."""
    swapped: Count | None = None
    """Preempted requests in host memory."""


class RouteStatus(StatusModel):
    """One route."""

    name: ShortText
    """The route."""
    model: ShortText | None = None
    """The alias that clients send."""
    kv_precision: Precision | None = None
    """The precision of its new requests."""
    state: RouteState = RouteState.NORMAL
    """Where its precision policy stands."""
    samples: Count | None = None
    """Answers in the window."""
    schema_failures: Count | None = None
    """Those of them that missed their schema."""
    since: datetime | None = None
    """When the state last changed."""
    reason: ShortText | None = None
    """Why it is in its state, in one word."""
    flaps: Annotated[tuple[datetime, ...], Field(max_length=3)] = ()
    """When the engine's precision was last found worse than the fallback; the third time within a day latches."""
    tests: Count = 0
    """Comparisons of both precisions that were begun; they set how long the route rests before the next one."""
    answers_since_test: Count | None = None
    """Answers since the last comparison that ended without a move, in steps of 5,000. Absent: none, or long ago."""


class PodStatus(StatusModel):
    """One engine pod."""

    name: ShortText
    """The pod."""
    state: PodState
    """Where it is in its life."""
    revision: ShortText | None = None
    """The revision of the spec it was made from."""
    node: ShortText | None = None
    """The node it runs on."""
    max_num_seqs: Count | None = None
    """Its running cap, as its engine reports it."""
    in_flight: Count | None = None
    """Requests that it still serves while it drains: exact up to 2, then rounded up to 5, 10, 20, 50 and so on."""
    restarts: Count = 0
    """How often its engine was restarted."""
    reason: ShortText | None = None
    """Why it does not serve, in one word."""
    message: Text | None = None
    """Why it does not serve, in a sentence."""


class Decision(StatusModel):
    """One thing that the operator did, or in Advisory mode would have done."""

    time: datetime
    """When."""
    remedy: Remedy
    """Which remedy."""
    subject: ShortText | None = None
    """The pod or route it was about. Absent: the service."""
    from_: ShortText = Field(alias="from")
    """The value before."""
    to: ShortText
    """The value after."""
    reason: ShortText
    """Why, in one word."""
    message: Text
    """Why, in a sentence."""
    advisory: bool = False
    """Whether it was only recorded."""
    measurements: Annotated[dict[ShortText, Ratio], Field(max_length=16)] = Field(default_factory=dict)
    """The numbers it was based on."""


class LLMServiceStatus(StatusModel):
    """What the operator saw and did."""

    observed_generation: Count | None = None
    """The generation of the spec that this status is about."""
    replicas: Count | None = None
    """Pods that exist and are not leaving."""
    desired_replicas: Count | None = None
    """Pods that are wanted."""
    ready_replicas: Count | None = None
    """Pods that serve."""
    updated_replicas: Count | None = None
    """Pods made from the current spec."""
    replicas_summary: ShortText | None = None
    """Serving and wanted pods, such as 2/3."""
    current_revision: ShortText | None = None
    """The revision that the current spec makes."""
    selector: Text | None = None
    """The pods' labels, as `/scale` reports them to autoscalers."""
    url: Text | None = None
    """Where the API is reached inside the cluster."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=len(ConditionType) + 3), MapList(key="type")] = ()
    """What is true of the service now, and why."""
    tuning: TuningStatus | None = None
    """The live settings of the engines."""
    kv_cache: KvCacheStatus | None = None
    """The KV pools."""
    load: LoadStatus | None = None
    """Requests."""
    routes: Annotated[tuple[RouteStatus, ...], Field(max_length=17), MapList(key="name")] = ()
    """The routes, `default` among them."""
    pods: Annotated[tuple[PodStatus, ...], Field(max_length=MAX_REPLICAS), MapList(key="name")] = ()
    """The engine pods."""
    precision_reset: ShortText | None = None
    """The value of the annotation `pagefleet.io/reset-precision` that was followed last."""
    next: Annotated[tuple[Text, ...], Field(max_length=MAX_NEXT)] = ()
    """What would have to change for the next remedy, in sentences."""
    decisions: Annotated[tuple[Decision, ...], Field(max_length=MAX_DECISIONS)] = ()
    """The last decisions, newest first."""


def parse_status(raw: Mapping[str, Any] | None) -> LLMServiceStatus:
    """The stored status; parts of it that this version cannot read are left out, since it is computed anew anyway."""
    fields = dict(raw or {})
    try:
        return LLMServiceStatus.model_validate(fields, by_name=False, by_alias=True)
    except ValidationError as error:
        unreadable = {problem["loc"][0] for problem in error.errors()}
        readable = {name: value for name, value in fields.items() if name not in unreadable}
        return LLMServiceStatus.model_validate(readable, by_name=False, by_alias=True)


def render_status(status: LLMServiceStatus) -> dict[str, Any]:
    """The status as it is written to the API server: camelCase, without absent fields."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)

"""`spec.autoscaling`, `spec.tuning` and `spec.routes`: what the three remedies may do."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.base import ApiModel, Rule
from pagefleet_operator.api.quantities import parse_share
from pagefleet_operator.api.scalars import (
    MAX_REPLICAS,
    ControlShare,
    Label,
    Latency,
    QuietPeriod,
    ServedName,
    Share,
)

DEFAULT_ROUTE: Final = "default"
"""The route of requests for the model itself."""
DEFAULT_CONTROL_SHARE: Final = 0.05
"""Of a route whose precision may be moved."""


class Mode(StrEnum):
    """How far the operator goes with a remedy."""

    AUTO = "Auto"
    ADVISORY = "Advisory"
    OFF = "Off"


class ScalingPolicy(ApiModel):
    """How much may change in one period."""

    type: Literal["Pods", "Percent"]
    """Whether `value` counts pods or percent of them."""
    value: Annotated[int, Field(ge=1, le=1000)]
    """The largest change in one period."""
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = 60
    """The period."""


Policies = Annotated[tuple[ScalingPolicy, ...], Field(max_length=8)]
Window = Annotated[int, Field(ge=0, le=3600)]
SelectPolicy = Literal["Max", "Min", "Disabled"]


class ScaleUpRules(ApiModel):
    """How fast replicas are added."""

    stabilization_window_seconds: Window = 0
    """How long the need must last."""
    select_policy: SelectPolicy = "Max"
    """Which policy counts when several are given; Disabled adds none."""
    policies: Policies = ()
    """Bounds on the change. Absent: one replica at a time."""


class ScaleDownRules(ApiModel):
    """How fast replicas are removed."""

    stabilization_window_seconds: Window = 300
    """How long it must have been quiet."""
    select_policy: SelectPolicy = "Max"
    """Which policy counts when several are given; Disabled removes none."""
    policies: Policies = ()
    """Bounds on the change. Absent: one replica at a time."""


class ScalingBehavior(ApiModel):
    """Spelled as in HorizontalPodAutoscaler."""

    scale_up: ScaleUpRules = ScaleUpRules()
    """How fast replicas are added."""
    scale_down: ScaleDownRules = ScaleDownRules()
    """How fast replicas are removed."""


class ScalingTargets(ApiModel):
    """What the fleet should hold."""

    queued_requests_per_replica: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Waiting requests per serving pod."""
    time_to_first_token: Latency | None = None
    """Time from a request's arrival to its first token. Absent: not looked at."""
    inter_token_latency: Latency | None = None
    """Time between two tokens of an answer. Absent: not looked at."""
    kv_cache_usage: Share = "0.80"
    """KV use that N-1 replicas must stay below before one is removed."""


class AutoscalingSpec(ApiModel):
    """Lets the operator choose the number of replicas."""

    mode: Mode = Mode.AUTO
    """Auto acts, Advisory records what it would have done, Off keeps `minReplicas`."""
    min_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Never fewer."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)]
    """Never more."""
    targets: ScalingTargets = ScalingTargets()
    """What the fleet should hold."""
    behavior: ScalingBehavior = ScalingBehavior()
    """How fast it may change."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be above maxReplicas",
            field="minReplicas",
            holds=lambda scaling: scaling.min_replicas <= scaling.max_replicas,
        ),
    )


class LengthTuning(ApiModel):
    """Lets the length of new requests be lowered as a last resort."""

    min: Annotated[int, Field(ge=16, le=10_000_000)]
    """The shortest `maxModelLen` that may be set."""


class TuningSpec(ApiModel):
    """Lets the operator move the engines' running cap within `engine.maxNumSeqs`."""

    mode: Mode = Mode.AUTO
    """Auto acts, Advisory records what it would have done, Off leaves the cap alone."""
    max_model_len: LengthTuning | None = None
    """Allows lowering the length of new requests when the cap is at its minimum and frames are still swapped."""


class KvPrecisionSpec(ApiModel):
    """When a route leaves the engine's KV precision."""

    policy: Mode | None = None
    """Auto acts, Advisory records what it would have done, Off keeps the engine's precision. Absent: Auto on a route
    with `structured: Validate`, else Off."""
    fallback: Precision = Precision.BF16
    """The precision to fall back to; never a coarser one than the engine's."""
    control_share: ControlShare | None = None
    """Share of the route's requests that run in the fallback precision all the time, to compare with. Absent: 0.05
    unless the policy is Off, else 0."""
    allow_demotion: bool = False
    """Whether sealed BF16 frames of this route may be made FP8 under pressure."""
    fp8_max_context: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    """Requests longer than this many tokens run in the fallback precision from the start. Absent: no such bound."""
    max_schema_failure_rate: Share = "0.05"
    """Share of answers that may miss their schema before the route is looked at."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Answers to have counted before anything is concluded."""
    window_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """How many of the last answers count."""
    return_after: QuietPeriod = "30m"
    """How long the route must be quiet before it is tried again in the engine's precision."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.minSamples <= self.windowRequests",
            message="minSamples must not be above windowRequests: a window never holds more answers than its size",
            field="minSamples",
            holds=lambda spec: spec.min_samples <= spec.window_requests,
        ),
    )


class RouteSpec(ApiModel):
    """A served alias of the model, with its own precision policy and counters."""

    name: Label
    """The route's label in metrics and status. `default` is taken by requests for the model itself."""
    model: ServedName
    """The alias that clients send as `model`."""
    structured: Literal["Off", "Validate"] = "Off"
    """Validate checks each finished answer against its request's JSON schema, and counts."""
    kv_precision: KvPrecisionSpec = KvPrecisionSpec()
    """When the route leaves the engine's KV precision."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"self.name != '{DEFAULT_ROUTE}'",
            message=f"a route cannot be named {DEFAULT_ROUTE}: requests for the model itself have that name",
            field="name",
            holds=lambda route: route.name != DEFAULT_ROUTE,
        ),
        Rule(
            cel="!has(self.kvPrecision.policy) || self.kvPrecision.policy == 'Off' || self.structured == 'Validate'",
            message="kvPrecision.policy acts on counted schema failures: set structured to Validate, or policy to Off",
            field="structured",
            holds=lambda route: route.kv_precision.policy in (None, Mode.OFF) or route.structured == "Validate",
        ),
    )

    @property
    def policy(self) -> Mode:
        """The policy, filled in where it is absent."""
        if self.kv_precision.policy is not None:
            return self.kv_precision.policy
        return Mode.AUTO if self.structured == "Validate" else Mode.OFF

    @property
    def control_share(self) -> float:
        """The control share, filled in where it is absent."""
        if self.kv_precision.control_share is not None:
            return parse_share(self.kv_precision.control_share)
        return 0.0 if self.policy is Mode.OFF else DEFAULT_CONTROL_SHARE

"""What the control loop knows and wants of one service, as the reconcile takes it. A value; nothing here decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import Decision, LLMServiceStatus, LoadStatus, RouteState, RouteStatus
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.runtime import RouteOverride
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.precision.look import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One serving pod."""

    cap: int | None = None  # as its engine reports it
    max_model_len: int | None = None  # likewise
    in_flight: int | None = None  # running, waiting and swapped requests
    trouble: str | None = None  # why its engine could not be measured, if it could not
    unset: str | None = None  # why it could not be set to what is wanted; tried again at every look


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """The latest look at a service. Numbers of load are coarse, and change at most every half minute."""

    uid: str = ""  # of the service
    start_cap: int | None = None  # what a pod made now should start with; None: what the spec says
    start_length: int | None = None
    overrides: Mapping[str, RouteOverride] = field(default_factory=dict)  # route -> what was decided for it
    replicas: int | None = None  # None: the loop has no opinion
    cap: int | None = None  # what the engines are meant to have; what they have, where nothing was decided
    max_model_len: int | None = None
    last_change: datetime | None = None  # of cap or length
    pods: Mapping[str, PodView] = field(default_factory=dict)
    load: LoadStatus | None = None
    kv_usage: str | None = None
    routes: tuple[RouteStatus, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)  # route -> what it says about PrecisionFallback
    reset_done: str | None = None  # the value of the reset annotation that was followed last
    decisions: tuple[Decision, ...] = ()  # newest first
    holds: tuple[Hold, ...] = ()
    next: tuple[str, ...] = ()  # what would have to change for the next remedy
    foreign_autoscaler: str | None = None

    def essence(self) -> tuple[object, ...]:
        """What may not wait to be shown: everything but numbers that move all the time."""
        return (
            *(self.start_cap, self.start_length, self.replicas, self.cap, self.max_model_len),
            *(self.overrides, self.decisions, self.reset_done, self.foreign_autoscaler),
            [(name, pod.cap, pod.trouble is None, pod.unset is None) for name, pod in sorted(self.pods.items())],
            [(route.name, route.state, route.kv_precision) for route in self.routes],
            [(name, fact.status, fact.reason) for name, fact in sorted(self.facts.items())],
            sorted({(hold.remedy, hold.reason) for hold in self.holds}),
        )

    @property
    def troubles(self) -> tuple[str, ...]:
        """Pods that could not be measured, with why."""
        return tuple(f"{name}: {pod.trouble}" for name, pod in sorted(self.pods.items()) if pod.trouble)

    @property
    def unset(self) -> tuple[str, ...]:
        """Pods that could not be set to what is wanted, with why."""
        return tuple(f"{name}: {pod.unset}" for name, pod in sorted(self.pods.items()) if pod.unset)


def full_lengths(spec: LLMServiceSpec, pods: Iterable[PodObservation]) -> set[int]:
    """The lengths that are no shortening: the spec's, and those that engines were started for."""
    lengths = (spec.engine.max_model_len, *(pod.max_model_len for pod in pods))
    return {length for length in lengths if length is not None}


def view_before_first_look(
    status: LLMServiceStatus, spec: LLMServiceSpec, pods: Iterable[PodObservation]
) -> ControlView:
    """What a pod starts with after a start of the operator: what was decided before, as far as status has it."""
    tuning = status.tuning if spec.tuning.mode is Mode.AUTO else None
    length = tuning.max_model_len if tuning else None
    moved = RouteOverride(control_share=0.0, may_demote=False)
    policies = {route.name: route.policy for route in spec.routes}
    return ControlView(
        start_cap=tuning.max_num_seqs if tuning else None,
        start_length=length if spec.engine.max_model_len and length not in full_lengths(spec, pods) else None,
        overrides={
            route.name: replace(moved, precision=route.kv_precision)
            for route in status.routes
            if route.state in (RouteState.FALLBACK, RouteState.LATCHED) and policies.get(route.name) is Mode.AUTO
        },
    )


def desired_replicas(spec: LLMServiceSpec, before: int | None, view: ControlView | None) -> int:
    """How many pods there should be: what the spec says, or within its bounds what was decided last.

    `before` is `status.desiredReplicas`, which outlives a restart of the operator.
    """
    scaling = spec.autoscaling
    if scaling is None or scaling.mode is Mode.OFF:
        return spec.desired_replicas
    return min(max(decided_replicas(spec, before, view), scaling.min_replicas), scaling.max_replicas)


def decided_replicas(spec: LLMServiceSpec, before: int | None, view: ControlView | None) -> int:
    """What was decided last, also where the spec's bounds have moved since: that is a decision, too."""
    if spec.autoscaling is None:
        return spec.desired_replicas
    decided = view.replicas if view is not None else None
    known = decided if decided is not None else before
    return known if known is not None else spec.autoscaling.min_replicas

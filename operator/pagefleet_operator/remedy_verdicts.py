"""What is true of the remedies of a service: the conditions that the control loop's last look decides.

Before the first look, after a start of the operator, they are Unknown for a few seconds: nothing is carried over.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagefleet_operator.api.conditions import ConditionType, Reason
from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.control.view import ControlView
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.reasons import HoldReason
from pagefleet_operator.verdict import FALSE, TRUE, UNKNOWN, Verdict

LIMITS = (HoldReason.AT_MAXIMUM, HoldReason.AT_MINIMUM)
NOT_LOOKED = Verdict(UNKNOWN, Reason.NOT_OBSERVED, "The engines have not been looked at yet.")


def judge_remedies(spec: LLMServiceSpec, view: ControlView | None) -> Iterator[tuple[ConditionType, Verdict]]:
    """The conditions about measuring, scaling, tuning and precision."""
    yield ConditionType.METRICS_AVAILABLE, judge_metrics(view)
    yield ConditionType.SCALING_ACTIVE, judge_scaling(spec)
    yield ConditionType.ABLE_TO_SCALE, judge_able(spec, view)
    yield ConditionType.SCALING_LIMITED, judge_limited(spec, view)
    yield ConditionType.TUNING_ACTIVE, judge_tuning(spec, view)
    yield ConditionType.PRECISION_FALLBACK, judge_fallback(spec, view)


def judge_metrics(view: ControlView | None) -> Verdict:
    """Whether every serving engine is measured."""
    if view is None:
        return NOT_LOOKED
    if not view.pods:
        return Verdict(UNKNOWN, Reason.NO_SERVING_POD, "No pod serves, so there is nothing to measure.")
    if view.troubles:
        return Verdict(FALSE, Reason.ENGINE_UNREACHABLE, "; ".join(view.troubles))
    return Verdict(TRUE, Reason.METRICS_FRESH, "Every serving engine is measured.")


def judge_scaling(spec: LLMServiceSpec) -> Verdict:
    """Whether the operator chooses the number of replicas."""
    if spec.autoscaling is None:
        return Verdict(FALSE, Reason.NOT_CONFIGURED, "spec.replicas sets the number of pods.")
    return _judge_mode(spec.autoscaling.mode, "spec.autoscaling.mode")


def judge_able(spec: LLMServiceSpec, view: ControlView | None) -> Verdict:
    """Whether nobody else chooses it, too."""
    if spec.autoscaling is None:
        return Verdict(TRUE, Reason.NOT_CONFIGURED, "spec.replicas, and whoever writes /scale, set the number of pods.")
    if view is None:
        return NOT_LOOKED
    if view.foreign_autoscaler is not None:
        message = f"{view.foreign_autoscaler} scales this service, too. Remove it, or spec.autoscaling."
        return Verdict(FALSE, Reason.FOREIGN_AUTOSCALER, message)
    return Verdict(TRUE, Reason.AS_EXPECTED, "No other autoscaler has this service as its target.")


def judge_limited(spec: LLMServiceSpec, view: ControlView | None) -> Verdict:
    """Whether another number of replicas would help that the bounds do not allow."""
    if spec.autoscaling is None:
        return Verdict(FALSE, Reason.NOT_CONFIGURED, "Nothing is scaled by the operator.")
    if view is None:
        return NOT_LOOKED
    for hold in _holds(view, Remedy.SCALE):
        if hold.reason in LIMITS:
            return Verdict(TRUE, Reason.REPLICA_LIMIT, hold.message)
    return Verdict(FALSE, Reason.AS_EXPECTED, "The number of replicas is within its bounds.")


def judge_tuning(spec: LLMServiceSpec, view: ControlView | None) -> Verdict:
    """Whether the operator moves the running cap."""
    if spec.tuning.mode is Mode.AUTO and view is not None and view.unset:
        return Verdict(UNKNOWN, Reason.ENGINE_NOT_SET, "; ".join(view.unset))
    return _judge_mode(spec.tuning.mode, "spec.tuning.mode")


def judge_fallback(spec: LLMServiceSpec, view: ControlView | None) -> Verdict:
    """Whether a route is served in its fallback precision; the one that most needs to be read comes first."""
    if all(route.policy is Mode.OFF for route in spec.routes):
        return Verdict(FALSE, Reason.NOT_CONFIGURED, "No route has a precision policy.")
    if view is None:
        return NOT_LOOKED
    order = (TRUE, UNKNOWN, FALSE)
    told = sorted(view.facts.items(), key=lambda item: order.index(item[1].status))
    if not told:
        return NOT_LOOKED
    name, fact = told[0]
    return Verdict(fact.status, fact.reason, f"{name}: {fact.message}")


def _judge_mode(mode: Mode, field: str) -> Verdict:
    if mode is Mode.AUTO:
        return Verdict(TRUE, Reason.AS_EXPECTED, f"{field} is Auto.")
    if mode is Mode.ADVISORY:
        return Verdict(FALSE, Reason.ADVISORY, f"{field} is Advisory: decisions are recorded, and nothing is changed.")
    return Verdict(FALSE, Reason.NOT_CONFIGURED, f"{field} is Off.")


def _holds(view: ControlView, remedy: Remedy) -> Iterator[Hold]:
    return (hold for hold in view.holds if hold.remedy is remedy)

"""The conditions of an LLMService: their types, their reasons, and the one function that sets them.

Follows metav1.Condition: the transition time moves only when the status flips; reason and message always follow.
Attribute docstrings are printed in the reference page, so they speak to users.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from pagefleet_operator.api.base import ApiModel

MAX_MESSAGE: Final = 1024


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """Every condition; each is always present, Unknown at first."""

    ACCEPTED = "Accepted"
    """The spec can be acted on. False: the message names the field and the remedy; nothing is changed meanwhile."""
    AVAILABLE = "Available"
    """Enough pods serve: all wanted ones but `rollout.maxUnavailable`, and at least one unless none is wanted."""
    PROGRESSING = "Progressing"
    """The fleet is on its way to the spec: pods are being created, replaced or removed."""
    MODEL_READY = "ModelReady"
    """An engine has loaded the model and answered its warm-up token."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """The engines' metrics are read and fresh."""
    SCALING_ACTIVE = "ScalingActive"
    """The operator chooses the number of replicas."""
    ABLE_TO_SCALE = "AbleToScale"
    """Nothing else on the cluster fights over the number of replicas."""
    SCALING_LIMITED = "ScalingLimited"
    """More or fewer replicas would help, but `minReplicas` or `maxReplicas` does not allow them."""
    TUNING_ACTIVE = "TuningActive"
    """The operator moves the engines' running cap."""
    PRECISION_FALLBACK = "PrecisionFallback"
    """At least one route is served in its fallback precision."""
    DRAINING = "Draining"
    """At least one pod finishes its requests before it leaves."""
    DEGRADED = "Degraded"
    """Something is wrong that a person should look at, although the service may still answer."""
    READY = "Ready"
    """The roll-up: accepted, available, and no pod in trouble. Tools wait for this one."""


class Reason(StrEnum):
    """Why a condition has its status, in one word that alerts can match."""

    NOT_OBSERVED = "NotObserved"
    """The operator has not looked yet."""
    NOT_CONFIGURED = "NotConfigured"
    """The spec does not ask for this."""
    AS_EXPECTED = "AsExpected"
    """Nothing to report."""
    PAUSED = "Paused"
    """`spec.paused` is set: the operator reports, but changes nothing. Set it to false to go on."""
    SPEC_ACCEPTED = "SpecAccepted"
    """The spec is valid and everything in it is built."""
    INVALID_SPEC = "InvalidSpec"
    """The spec breaks a rule. The message names the field and the remedy."""
    NOT_BUILT = "NotBuilt"
    """This version does not have the behaviour. Where a field asks for it, the message says what to set instead."""
    INVALID_ENGINE_ARGUMENTS = "InvalidEngineArguments"
    """The engine would refuse its command line. Correct the named entry of `engine.extraArgs`."""
    ALL_REPLICAS_READY = "AllReplicasReady"
    """Every wanted pod serves."""
    ENOUGH_REPLICAS_READY = "EnoughReplicasReady"
    """Not all wanted pods serve, but no fewer than `rollout.maxUnavailable` allows."""
    TOO_FEW_REPLICAS_READY = "TooFewReplicasReady"
    """Fewer pods serve than `rollout.maxUnavailable` allows. Look at `status.pods`."""
    NO_REPLICAS_READY = "NoReplicasReady"
    """No pod serves yet. Look at ModelReady and at `status.pods`."""
    SCALED_TO_ZERO = "ScaledToZero"
    """`spec.replicas` is 0: no pod is wanted, so none serves."""
    SETTLED = "Settled"
    """The fleet is what the spec asks for."""
    CREATING_PODS = "CreatingPods"
    """Pods are missing and are being created."""
    WAITING_FOR_PODS = "WaitingForPods"
    """Pods exist and are starting."""
    REPLACING_PODS = "ReplacingPods"
    """Pods of an older revision are being replaced."""
    REMOVING_PODS = "RemovingPods"
    """More pods than wanted; the surplus drains and leaves."""
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """No pod has become ready for ten minutes. Look at `status.pods` and at the engine's log."""
    MODEL_LOADED = "ModelLoaded"
    """The model is loaded and has answered a warm-up token."""
    MODEL_LOADING = "ModelLoading"
    """An engine runs, and loads the model."""
    ENGINE_NOT_READY = "EngineNotReady"
    """An engine that has served fails its readiness probe, although its process runs. Look at the engine's log."""
    MODEL_MISSING = "ModelMissing"
    """The engine found no model at `model.uri`. Correct the path, or the volume it is on."""
    ENGINE_START_FAILED = "EngineStartFailed"
    """The engine refused to start and said why in one line, which the message repeats."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """The node cannot pull `engine.image`. Check its spelling, the registry, and `pod.imagePullSecrets`."""
    ENGINE_RESTARTING = "EngineRestarting"
    """The engine ended while it should run, and is started again. `kubectl logs --previous` shows its last words."""
    CRASH_LOOP = "CrashLoopBackOff"
    """The engine keeps ending, and the node waits before each start. `kubectl logs --previous` shows its last words."""
    OUT_OF_MEMORY = "OOMKilled"
    """The engine went over its memory limit. Raise `pod.resources.limits.memory` or lower `kvCache.size`."""
    UNSCHEDULABLE = "Unschedulable"
    """No node has room for the pod, or none matches its node selector and tolerations."""
    INSUFFICIENT_GPU = "InsufficientGPU"
    """No node has the GPUs that `pod.resources` asks for."""
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    """A Secret or ConfigMap that `pod` names is missing, or the image cannot run under the restricted profile."""
    POD_REFUSED = "PodRefused"
    """The API server refused to create the pod: a quota, a policy, or a value it does not accept."""
    POD_FAILED = "PodFailed"
    """A pod ended, or was evicted, and is being replaced."""
    NAME_TAKEN = "NameTaken"
    """An object that the operator did not make has the name or label of a child. Remove it, or rename one of them."""
    NODE_LOST = "NodeLost"
    """The node of a pod does not answer."""
    NO_SERVING_POD = "NoServingPod"
    """No pod serves, so there is nothing to measure."""
    METRICS_FRESH = "MetricsFresh"
    """Every serving engine was measured within the last seconds."""
    ENGINE_UNREACHABLE = "EngineUnreachable"
    """An engine did not answer the operator. Look at the pod, and at NetworkPolicies between them."""
    ENGINE_NOT_SET = "EngineNotSet"
    """An engine could not be set to the wanted cap, length or routes; that is tried again every few seconds."""
    FOREIGN_AUTOSCALER = "ForeignAutoscaler"
    """Another autoscaler has this service as its target, so the operator leaves the replicas alone. Remove one."""
    REPLICA_LIMIT = "ReplicaLimit"
    """`minReplicas` or `maxReplicas` is reached."""
    ADVISORY = "Advisory"
    """Decisions are recorded in `status.decisions`, and nothing is changed."""
    PODS_DRAINING = "PodsDraining"
    """Pods finish their requests before they leave."""
    DIFFERENCE_CONFIRMED = "DifferenceConfirmed"
    """A route failed more often in the engine's KV precision than in its fallback, and runs in the latter."""
    PRECISION_PROBING = "PrecisionProbing"
    """A route in fallback tries the engine's KV precision with a small share of its requests."""
    PRECISION_LATCHED = "PrecisionLatched"
    """A route fell back too often within a day. It stays there until `pagefleet.io/reset-precision` names it."""
    KNOWN_FAMILY = "KnownFamily"
    """The model is of a family that an FP8 KV cache is known to damage, so its routes start in the fallback."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """A route should fall back, but its KV would not fit. Add a replica, or lower `engine.maxNumSeqs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionState:
    """What a decision says about one condition; `set_condition` adds since when."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str
    observed_generation: int


class Condition(ApiModel):
    """One entry of `status.conditions`, as in metav1.Condition."""

    model_config = ConfigDict(extra="ignore")

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """The condition's name."""
    status: ConditionStatus
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Why, in one word."""
    message: Annotated[str, Field(max_length=MAX_MESSAGE)] = ""
    """Why, in a sentence, with the remedy where there is one."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of the spec that this was said about."""
    last_transition_time: datetime
    """When the status last changed."""


def set_condition(conditions: Sequence[Condition], new: ConditionState, now: datetime) -> tuple[Condition, ...]:
    """The conditions with `new` among them, in the order of `ConditionType`; types unknown to us are dropped."""
    old = next((condition for condition in conditions if condition.type == new.type), None)
    flipped = old is None or old.status is not new.status
    changed = Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=bounded(new.message, MAX_MESSAGE),
        observed_generation=new.observed_generation,
        last_transition_time=now.replace(microsecond=0) if old is None or flipped else old.last_transition_time,
    )
    by_type = {condition.type: condition for condition in conditions} | {str(new.type): changed}
    return tuple(by_type[kind] for kind in ConditionType if kind in by_type)


def set_conditions(
    conditions: Sequence[Condition], states: Iterable[ConditionState], now: datetime
) -> tuple[Condition, ...]:
    """`set_condition` for several, and Unknown for every type that is still absent."""
    result = tuple(conditions)
    for state in states:
        result = set_condition(result, state, now)
    present = {condition.type for condition in result}
    for kind in ConditionType:
        if kind not in present:
            result = set_condition(result, _unknown(kind), now)
    return result


def find_condition(conditions: Iterable[Condition], kind: ConditionType) -> Condition | None:
    """The condition of that type."""
    return next((condition for condition in conditions if condition.type == kind), None)


def bounded(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with an ellipsis as the last one."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _unknown(kind: ConditionType) -> ConditionState:
    return ConditionState(
        type=kind,
        status=ConditionStatus.UNKNOWN,
        reason=Reason.NOT_OBSERVED,
        message="The operator has not looked at this yet.",
        observed_generation=0,
    )

"""From raw objects to one typed snapshot of a service and its children.

Parsing only: nothing here decides what to do. Children of another owner are told apart from ours by the owner's uid,
never by name or label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pagefleet_engine.contract.arguments import ArgumentError
from pagefleet_engine.contract.control import EngineState
from pagefleet_operator import labels
from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.api.problems import FieldProblem
from pagefleet_operator.api.status import LLMServiceStatus, parse_status
from pagefleet_operator.api.unbuilt import unbuilt_fields
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.api.validation import validate
from pagefleet_operator.control.view import ControlView, desired_replicas
from pagefleet_operator.labels import Key
from pagefleet_operator.leaving import Waited
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.manifests.pod import render_pod
from pagefleet_operator.pods import PodObservation, Trouble, observe_pod
from pagefleet_operator.resources import Object, controller_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What `gather` read, as the API server sent it."""

    service: Object  # the LLMService
    pods: tuple[Object, ...]  # every pod with the service's label
    named: Mapping[tuple[str, str], Object]  # children with fixed names by (kind, name), as far as they exist
    routed: frozenset[str] = frozenset()  # uids of the pods that endpoints send traffic to; read while pods drain
    engine_states: Mapping[str, EngineState] = field(default_factory=dict)  # of draining pods that answered, by uid
    control: ControlView | None = None  # None: the control loop has not looked yet
    public_keys: str | None = None  # what engines check control tokens with
    waited: Mapping[str, Waited] = field(default_factory=dict)  # for pods that are marked to leave, by uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A spec that can be acted on."""

    spec: LLMServiceSpec
    rendered: Object  # the pod without its name
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unacceptable:
    """A spec that cannot be acted on."""

    reason: Reason
    problems: tuple[FieldProblem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One service and its children at one moment."""

    owner: Owner
    generation: int
    deleting: bool
    wanted: Wanted | Unacceptable
    pods: tuple[PodObservation, ...]  # ours
    pod_names: frozenset[str]  # ours and others': names that a new pod cannot have
    children: Mapping[tuple[str, str], Object]  # ours, by (kind, name)
    foreign: tuple[str, ...]  # "Service smollm2": not ours, but in our way
    status: LLMServiceStatus  # as it was written last
    raw_status: Object
    resource_version: str
    replicas: int = 0  # how many pods are wanted; 0 without an acceptable spec
    control: ControlView | None = None
    public_keys: str | None = None
    reset_precision: str | None = None  # what a person's annotation asks for
    routed: frozenset[str] = frozenset()
    engine_states: Mapping[str, EngineState] = field(default_factory=dict)
    waited: Mapping[str, Waited] = field(default_factory=dict)
    refusals: tuple[Trouble, ...] = ()  # what the API server refused to create in this very reconcile


def observe(gathered: Gathered) -> Observation:
    """The typed snapshot."""
    metadata = gathered.service["metadata"]
    owner = Owner(key=Key(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
    pods = [observe_pod(raw) for raw in gathered.pods]
    raw_status = gathered.service.get("status") or {}
    status, wanted = parse_status(raw_status), accept(gathered.service.get("spec"), owner.key.name)
    replicas = 0
    if isinstance(wanted, Wanted):
        replicas = desired_replicas(wanted.spec, status.desired_replicas, gathered.control)
    return Observation(
        owner=owner,
        generation=metadata["generation"],
        deleting="deletionTimestamp" in metadata,
        wanted=wanted,
        pods=tuple(sorted((pod for pod in pods if pod.owner_uid == owner.uid), key=lambda pod: pod.name)),
        pod_names=frozenset(pod.name for pod in pods),
        children={where: raw for where, raw in gathered.named.items() if controller_uid(raw) == owner.uid},
        foreign=_foreign(gathered, pods, owner),
        status=status,
        raw_status=raw_status,
        resource_version=metadata["resourceVersion"],
        routed=gathered.routed,
        engine_states=gathered.engine_states,
        waited=gathered.waited,
        replicas=replicas,
        control=gathered.control,
        public_keys=gathered.public_keys,
        reset_precision=metadata.get("annotations", {}).get(labels.RESET_PRECISION),
    )


def accept(raw_spec: Mapping[str, Any] | None, service: str) -> Wanted | Unacceptable:
    """Validate a spec in all its layers: schema and rules, what is built, what the engine would refuse."""
    spec = validate(raw_spec)
    if not isinstance(spec, LLMServiceSpec):
        return Unacceptable(reason=Reason.INVALID_SPEC, problems=tuple(spec))
    unbuilt = unbuilt_fields(spec)
    if unbuilt:
        return Unacceptable(reason=Reason.NOT_BUILT, problems=tuple(unbuilt))
    try:
        rendered = render_pod(spec, service)
    except ArgumentError as error:
        path = "spec.engine.extraArgs" if spec.engine.extra_args else "spec.engine"
        problem = FieldProblem(path=path, message=str(error))
        return Unacceptable(reason=Reason.INVALID_ENGINE_ARGUMENTS, problems=(problem,))
    return Wanted(spec=spec, rendered=rendered, revision=labels.revision_of(rendered))


def with_refusals(observed: Observation, refusals: tuple[Trouble, ...]) -> Observation:
    """The same snapshot, and what the API server said to the attempt to change it."""
    return replace(observed, refusals=refusals)


def _foreign(gathered: Gathered, pods: list[PodObservation], owner: Owner) -> tuple[str, ...]:
    """Objects in our way. Pods of an owner that is gone are not: garbage collection is about to take them."""
    named = [f"{kind} {name}" for (kind, name), raw in gathered.named.items() if controller_uid(raw) != owner.uid]
    orphans = [f"Pod {pod.name}" for pod in pods if pod.owner_uid is None and not pod.leaving]
    return tuple(named + orphans)

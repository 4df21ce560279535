"""What to do about one service now, and why: pure, level-triggered, and empty once everything is as it should be.

The steps of a plan do not depend on each other, so any of them may fail or be lost: the next plan has what is left.
A plan never creates and deletes the same object. Status and events are decided here, too, from the same observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pagefleet_operator import labels
from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.api.quantities import parse_duration
from pagefleet_operator.api.status import LLMServiceStatus
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.control.view import view_before_first_look
from pagefleet_operator.drift import find_drift
from pagefleet_operator.events import EventNote, notes_of_decisions, notes_of_transitions
from pagefleet_operator.leaving import ASK_AGAIN, Departure, Waited, acts_of_leaving, acts_of_return
from pagefleet_operator.leaving_steps import delete_pod, mark, open_gate, steps_of
from pagefleet_operator.manifests.pdb import build_budget
from pagefleet_operator.manifests.pod import build_pod
from pagefleet_operator.manifests.runtime import runtime_annotation, runtime_start
from pagefleet_operator.manifests.service import build_headless_service, build_service
from pagefleet_operator.observe import Observation, Wanted
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.resources import BUDGET, POD, SERVICE, Object, Resource
from pagefleet_operator.rollout import Limits, Member, next_step
from pagefleet_operator.status import OVERDUE_AFTER, PROGRESS_DEADLINE, build_status, is_overdue, status_patch
from pagefleet_operator.steps import Create, Delete, Patch, Step

FAILED_POD_REST: Final = timedelta(seconds=10)
"""A failed pod is replaced no sooner than this after its creation, so a node that refuses every pod costs no storm."""
RETRY_REFUSED: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, what to say, and when to look again at the latest."""

    steps: tuple[Step, ...] = ()
    status: LLMServiceStatus | None = None  # None: leave it
    events: tuple[EventNote, ...] = ()  # of transitions; those of steps follow from what was carried out
    requeue_after: timedelta | None = None  # besides wake-ups and the resync


def decide(observed: Observation, now: datetime) -> Plan:
    """The plan for a service. Children of a service that is being deleted are left to garbage collection."""
    if observed.deleting:
        return Plan()
    steps = tuple(_steps(observed, now))
    status = build_status(observed, now)
    return Plan(
        steps=steps,
        status=status,
        events=(*notes_of_transitions(observed.status, status), *notes_of_decisions(observed.status, status)),
        requeue_after=_next_look(observed, now),
    )


def needs_work(observed: Observation, now: datetime) -> bool:
    """Whether a reconcile would write anything. Of pods that drain only their engines know, so they always need it."""
    if any(pod.draining for pod in observed.pods):
        return True
    plan = decide(observed, now)
    return bool(plan.steps) or (plan.status is not None and status_patch(observed.raw_status, plan.status) is not None)


def _steps(observed: Observation, now: datetime) -> Iterator[Step]:
    wanted = observed.wanted
    if not isinstance(wanted, Wanted) or wanted.spec.paused:
        yield from finish_drains(observed, now)
        return
    for stage in STAGES:
        yield from stage(observed, wanted, now)


def keep_network(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """The two Services: there, and as they should be."""
    for manifest in (build_service(observed.owner), build_headless_service(observed.owner)):
        yield from _keep(observed, SERVICE, manifest)


def keep_budget(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """The PodDisruptionBudget: there from two replicas on, gone below."""
    spec, name = wanted.spec, observed.owner.key.name
    budget = build_budget(observed.owner, observed.replicas, spec.rollout.max_unavailable)
    if budget is not None:
        yield from _keep(observed, BUDGET, budget)
        return
    live = observed.children.get((BUDGET.kind, name))
    if live is not None:
        why = "a budget for fewer than two replicas would block every node drain"
        yield Delete(resource=BUDGET, name=name, uid=live["metadata"]["uid"], reason=Reason.SETTLED, why=why)


def keep_keys(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """Every pod has the public keys of now, also those of pods that drain: their engines are asked about it."""
    for pod in observed.pods:
        if observed.public_keys is not None and pod.public_keys != observed.public_keys and not pod.leaving:
            patch = {"metadata": {"uid": pod.uid, "annotations": {labels.CONTROL_KEYS: observed.public_keys}}}
            why = "the keys that sign control tokens have changed"
            yield Patch(resource=POD, name=pod.name, patch=patch, reason=Reason.SETTLED, why=why)


def remove_failed_pods(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """Pods that will never run again; their replacements come with the rollout's count."""
    for pod in _failed(observed):
        if now - pod.created >= FAILED_POD_REST:
            why = pod.trouble.message if pod.trouble else "it ended"
            yield delete_pod(pod, Reason.POD_FAILED, why)


def open_gates(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """New pods may serve as soon as their engines are ready, whether the operator is there by then or not."""
    for pod in observed.pods:
        if pod.gate is False and not (pod.draining or pod.leaving or pod.gone):
            yield open_gate(pod, now)


def advance_fleet(observed: Observation, wanted: Wanted, now: datetime) -> Iterator[Step]:
    """Scale and roll out, as far as the limits allow now."""
    spec = wanted.spec
    failed = {pod.name for pod in _failed(observed)}
    members = [_member(observed, pod, wanted, now) for pod in observed.pods if pod.name not in failed]
    resting = sum(now - pod.created < FAILED_POD_REST for pod in _failed(observed))
    limits = Limits(
        replicas=observed.replicas,
        max_surge=spec.rollout.max_surge,
        max_unavailable=spec.rollout.max_unavailable,
    )
    step = next_step(members, limits)
    by_name = {pod.name: pod for pod in observed.pods}
    for name in (*step.scale_down, *step.replace):
        yield _dismiss(observed, by_name[name], wanted, now)
    yield from _depart(observed, wanted, set(step.keep), now)
    yield from _create_pods(observed, wanted, step.create - resting)


def finish_drains(observed: Observation, now: datetime) -> Iterator[Step]:
    """Paused, or without an acceptable spec: nothing new begins, and what has begun to leave does not stop half-way.

    A pod that refuses requests serves nobody, so it has to go on its way. Without a spec no drain is cut short.
    """
    wanted = observed.wanted
    timeout = parse_duration(wanted.spec.drain.timeout) if isinstance(wanted, Wanted) else timedelta.max
    for pod in observed.pods:
        if pod.marked is not None and not (pod.leaving or pod.gone):
            acts = acts_of_leaving(_departure(observed, pod), timeout)
            yield from steps_of(acts, pod, Reason.REMOVING_PODS, "it had begun to leave", now)


STAGES: Final[tuple[Callable[[Observation, Wanted, datetime], Iterator[Step]], ...]] = (
    keep_network,  # an address first: clients may resolve it before a pod is ready
    keep_budget,
    open_gates,
    keep_keys,
    remove_failed_pods,  # before the count, so that a dead pod is not counted as capacity
    advance_fleet,
)


def _keep(observed: Observation, resource: Resource, manifest: Object) -> Iterator[Step]:
    name = manifest["metadata"]["name"]
    if f"{resource.kind} {name}" in observed.foreign:
        return
    live = observed.children.get((resource.kind, name))
    if live is None:
        yield Create(resource=resource, manifest=manifest, reason=Reason.CREATING_PODS, why="it is missing")
        return
    patch = find_drift(live, manifest)
    if patch is not None and "deletionTimestamp" not in live["metadata"]:
        why = "it differs from what the spec makes"
        yield Patch(resource=resource, name=name, patch=patch, reason=Reason.REPLACING_PODS, why=why)


def _create_pods(observed: Observation, wanted: Wanted, count: int) -> Iterator[Step]:
    service = observed.owner.key.name
    free = (
        ordinal
        for ordinal in range(len(observed.pod_names) + max(0, count))
        if labels.pod_name(service, wanted.revision, ordinal) not in observed.pod_names
    )
    annotations = _annotations(observed, wanted.spec)
    why = f"{observed.replicas} replicas of revision {wanted.revision} are wanted"
    for _, ordinal in zip(range(count), free, strict=False):
        manifest = build_pod(wanted.rendered, observed.owner, ordinal, annotations)
        yield Create(resource=POD, manifest=manifest, reason=Reason.CREATING_PODS, why=why)


def _dismiss(observed: Observation, pod: PodObservation, wanted: Wanted, now: datetime) -> Step:
    """A pod that may have requests drains first; what serves nobody goes at once."""
    reason, why = _why_leaving(observed, pod, wanted)
    is_serving = pod.gate is not None and pod.running and (pod.ready or pod.served)
    return mark(pod, reason, why, now) if is_serving else delete_pod(pod, reason, why)


def _depart(observed: Observation, wanted: Wanted, keep: set[str], now: datetime) -> Iterator[Step]:
    """The next steps of every draining pod, out or back."""
    timeout = parse_duration(wanted.spec.drain.timeout)
    for pod in observed.pods:
        if pod.marked is None or pod.leaving or pod.gone:
            continue
        departure = _departure(observed, pod)
        if pod.name in keep and departure.waited < timeout:
            why = f"{observed.replicas} replicas are wanted again"
            yield from steps_of(acts_of_return(departure), pod, Reason.SETTLED, why, now)
        else:
            yield from steps_of(acts_of_leaving(departure, timeout), pod, *_why_leaving(observed, pod, wanted), now)


def _departure(observed: Observation, pod: PodObservation) -> Departure:
    waited = observed.waited.get(pod.uid, Waited())
    return Departure(
        waited=waited.marked,
        is_closed=pod.gate is not True,
        closed_for=waited.closed,
        is_routed=pod.uid in observed.routed,
        runs=pod.running,
        engine=observed.engine_states.get(pod.uid),
    )


def _why_leaving(observed: Observation, pod: PodObservation, wanted: Wanted) -> tuple[Reason, str]:
    if pod.revision != wanted.revision:
        return Reason.REPLACING_PODS, f"revision {wanted.revision} replaces revision {pod.revision}"
    return Reason.REMOVING_PODS, f"{observed.replicas} replicas are wanted"


def _annotations(observed: Observation, spec: LLMServiceSpec) -> dict[str, str]:
    """What a new pod's engine starts with."""
    view = observed.control or view_before_first_look(observed.status, spec, observed.pods)
    start = runtime_start(spec, cap=view.start_cap, max_model_len=view.start_length, overrides=view.overrides)
    found = {labels.RUNTIME_CONFIG: runtime_annotation(start)}
    return found if observed.public_keys is None else found | {labels.CONTROL_KEYS: observed.public_keys}


def _failed(observed: Observation) -> list[PodObservation]:
    return [pod for pod in observed.pods if pod.gone and not pod.leaving]


def _member(observed: Observation, pod: PodObservation, wanted: Wanted, now: datetime) -> Member:
    known = observed.control.pods.get(pod.name) if observed.control is not None else None
    return Member(
        name=pod.name,
        created=pod.created,
        current=pod.revision == wanted.revision,
        health=pod.health,
        scheduled=pod.node is not None,
        leaving=pod.leaving,
        draining=pod.draining,
        in_flight=known.in_flight if known is not None else None,
        overdue=is_overdue(pod, now),
    )


def _next_look(observed: Observation, now: datetime) -> timedelta | None:
    """The earliest moment at which time alone changes the plan or the status."""
    moments = [pod.created + FAILED_POD_REST for pod in _failed(observed)]
    moments += [pod.unready_since + PROGRESS_DEADLINE for pod in observed.pods if not pod.ready and not pod.leaving]
    moments += [pod.deadline + OVERDUE_AFTER for pod in observed.pods if pod.deadline is not None]
    waits = [moment - now for moment in moments if moment > now]
    if any(pod.draining for pod in observed.pods):
        waits.append(ASK_AGAIN)
    if observed.refusals:
        waits.append(RETRY_REFUSED)
    return min(waits, default=None)

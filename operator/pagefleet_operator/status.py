"""The whole status of a service from one observation; little is carried over from the one before.

Transition times are. Where the spec is unacceptable, numbers that only a spec can give keep their last value: the pods
still run with it. Caps stay until the control loop has looked at their engines: a restart of the operator is
survived by what is written here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from pagefleet_operator import labels
from pagefleet_operator.api.conditions import Reason, set_conditions
from pagefleet_operator.api.scalars import MAX_REPLICAS
from pagefleet_operator.api.status import (
    KvCacheStatus,
    LLMServiceStatus,
    PodState,
    PodStatus,
    TuningStatus,
    render_status,
)
from pagefleet_operator.control.numbers import coarse
from pagefleet_operator.control.view import full_lengths
from pagefleet_operator.manifests.service import service_url
from pagefleet_operator.observe import Observation, Wanted
from pagefleet_operator.pods import PodObservation, Trouble
from pagefleet_operator.resources import Object
from pagefleet_operator.verdicts import Fleet, judge

PROGRESS_DEADLINE: Final = timedelta(minutes=10)
OVERDUE_AFTER: Final = timedelta(seconds=60)
"""A pod that leaves and is still there this long after its grace period is on a node that does not answer."""


def build_status(observed: Observation, now: datetime) -> LLMServiceStatus:
    """The status to write."""
    fleet = observe_fleet(observed, now)
    live = _live_settings(observed)
    return LLMServiceStatus(
        observed_generation=observed.generation,
        replicas=len(fleet.staying),
        desired_replicas=fleet.desired,
        ready_replicas=fleet.num_ready,
        updated_replicas=len(fleet.current),
        replicas_summary=f"{fleet.num_ready}/{fleet.desired}",
        current_revision=fleet.revision,
        selector=labels.selector_text(labels.pod_selector(observed.owner.key.name)),
        url=service_url(observed.owner),
        conditions=set_conditions(observed.status.conditions, judge(observed, fleet), now),
        tuning=live.tuning,
        kv_cache=live.kv_cache,
        pods=tuple(_pod_status(pod, observed, now) for pod in observed.pods[:MAX_REPLICAS]),
        load=live.load,
        routes=live.routes,
        precision_reset=live.precision_reset,
        next=live.next,
        decisions=live.decisions,
    )


def observe_fleet(observed: Observation, now: datetime) -> Fleet:
    """The counts that conditions are judged by."""
    wanted = observed.wanted
    staying = tuple(pod for pod in observed.pods if not (pod.leaving or pod.draining or pod.gone))
    if isinstance(wanted, Wanted):
        revision: str | None = wanted.revision
        desired, max_unavailable = observed.replicas, wanted.spec.rollout.max_unavailable
    else:
        before = observed.status.desired_replicas
        revision = observed.status.current_revision
        desired, max_unavailable = len(staying) if before is None else before, 0
    return Fleet(
        desired=desired,
        max_unavailable=max_unavailable,
        revision=revision,
        staying=staying,
        current=tuple(pod for pod in staying if pod.revision == revision),
        leaving=tuple(pod for pod in observed.pods if pod.leaving or pod.draining),
        lost=tuple(pod for pod in observed.pods if is_overdue(pod, now)),
        gone=tuple(pod for pod in observed.pods if pod.gone and not pod.leaving),
        late=tuple(pod for pod in staying if not pod.ready and now - pod.unready_since >= PROGRESS_DEADLINE),
    )


def is_overdue(pod: PodObservation, now: datetime) -> bool:
    """Whether a leaving pod should have been gone long ago."""
    return pod.deadline is not None and now - pod.deadline >= OVERDUE_AFTER


def status_patch(stored: Object, status: LLMServiceStatus) -> Object | None:
    """A JSON merge patch that turns the stored status into this one; None when they are equal."""
    return _difference(stored, render_status(status)) or None


def _live_settings(observed: Observation) -> LLMServiceStatus:
    """What the control loop says; before its first look, what it said last or what the spec starts with."""
    old, view = observed.status, observed.control
    if not isinstance(observed.wanted, Wanted):
        return old
    engine = observed.wanted.spec.engine
    if view is None:
        started = TuningStatus(
            max_num_seqs=engine.max_num_seqs.initial_cap,
            capacity=engine.max_num_seqs.max,
            max_model_len=engine.max_model_len,
        )
        kv_cache = KvCacheStatus(precision=engine.kv_cache.precision)
        tuning = old.tuning or started
        if tuning.max_model_len in full_lengths(observed.wanted.spec, observed.pods):
            tuning = tuning.model_copy(update={"max_model_len": engine.max_model_len})  # it was not shortened
        return old.model_copy(update={"tuning": tuning, "kv_cache": old.kv_cache or kv_cache})
    return LLMServiceStatus(
        tuning=TuningStatus(
            max_num_seqs=view.cap,
            capacity=engine.max_num_seqs.max,
            max_model_len=view.max_model_len,
            last_change_time=view.last_change,
        ),
        kv_cache=KvCacheStatus(precision=engine.kv_cache.precision, usage=view.kv_usage),
        load=view.load,
        routes=view.routes,
        precision_reset=view.reset_done,
        next=view.next,
        decisions=view.decisions,
    )


def _pod_status(pod: PodObservation, observed: Observation, now: datetime) -> PodStatus:
    trouble = _pod_trouble(pod, now)
    engine = observed.engine_states.get(pod.uid)
    cap, restarts = _last_cap(pod, observed)
    return PodStatus(
        name=pod.name,
        state=_pod_state(pod),
        revision=pod.revision,
        node=pod.node,
        max_num_seqs=cap,
        in_flight=coarse(engine.in_flight) if engine is not None else None,
        restarts=restarts,
        reason=trouble.reason if trouble else None,
        message=trouble.message if trouble else None,
    )


def _last_cap(pod: PodObservation, observed: Observation) -> tuple[int | None, int]:
    """The cap that its engine reported last, and restarts.

    Before the loop's first look these are the restarts when the cap was reported: an engine that was restarted while
    the operator was away has another one, and gets the cap of before.
    """
    known = observed.control.pods.get(pod.name) if observed.control is not None else None
    if known is not None and known.cap is not None:
        return known.cap, pod.restarts
    before = next((entry for entry in observed.status.pods if entry.name == pod.name), None)
    if before is None or before.max_num_seqs is None:
        return None, pod.restarts
    return before.max_num_seqs, before.restarts if observed.control is None else pod.restarts


def _pod_trouble(pod: PodObservation, now: datetime) -> Trouble | None:
    if is_overdue(pod, now):
        return Trouble(reason=Reason.NODE_LOST, message="its node does not confirm the end of the pod")
    if pod.served and not pod.leaving and not pod.draining:
        message = "it has served, and fails its readiness probe now"
        return Trouble(reason=Reason.ENGINE_NOT_READY, message=message)
    return pod.trouble


def _pod_state(pod: PodObservation) -> PodState:
    if pod.leaving:
        return PodState.TERMINATING
    if pod.draining:
        return PodState.DRAINING
    if pod.ready:
        return PodState.SERVING
    if pod.trouble is not None or pod.served:
        return PodState.FAILING
    return PodState.STARTING if pod.running else PodState.PENDING


def _difference(stored: Any, wanted: Object) -> Object:
    patch: Object = {key: None for key in stored.keys() - wanted.keys()}
    for key, value in wanted.items():
        there = stored.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            nested = _difference(there, value)
            if nested:
                patch[key] = nested
        elif there != value:
            patch[key] = value
    return patch

"""The acts of `leaving` as steps of a plan: which patch, which call, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from pagefleet_operator import labels
from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.leaving import CUT_GRACE_S, Act
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.resources import POD, Object
from pagefleet_operator.steps import CancelDrain, Delete, Drain, Patch, Step

GATE_REASONS: Final = {True: "Serving", False: "Leaving"}


def mark(pod: PodObservation, reason: Reason, why: str, now: datetime) -> Patch:
    """Begin: from now on the pod is on its way out."""
    return _patch_mark(pod, timestamp(now), reason, why)


def open_gate(pod: PodObservation, now: datetime) -> Patch:
    """Let traffic come to a new pod as soon as its engine is ready."""
    return _patch_gate(pod, True, Reason.WAITING_FOR_PODS, "it is wanted", now)


def steps_of(acts: Iterable[Act], pod: PodObservation, reason: Reason, why: str, now: datetime) -> Iterator[Step]:
    """One step for each act, in the order of `Act`."""
    engine = EnginePod(name=pod.name, uid=pod.uid, ip=pod.ip) if pod.ip else None
    for act in sorted(acts, key=list(Act).index):
        match act:
            case Act.CLOSE_GATE | Act.OPEN_GATE:
                yield _patch_gate(pod, act is Act.OPEN_GATE, reason, why, now)
            case Act.DRAIN | Act.REFUSE if engine:
                yield Drain(pod=engine, refuse=act is Act.REFUSE, reason=reason, why=why)
            case Act.CANCEL if engine:
                yield CancelDrain(pod=engine, reason=reason, why=why)
            case Act.UNMARK:
                yield _patch_mark(pod, None, reason, why)
            case Act.DELETE | Act.CUT:
                grace_s = CUT_GRACE_S if act is Act.CUT else None
                yield delete_pod(pod, reason, why, grace_s=grace_s)


def delete_pod(pod: PodObservation, reason: Reason, why: str, *, grace_s: int | None = None) -> Delete:
    """Remove this very pod."""
    return Delete(resource=POD, name=pod.name, uid=pod.uid, reason=reason, why=why, grace_s=grace_s)


def timestamp(moment: datetime) -> str:
    """RFC 3339, to the second, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _patch_mark(pod: PodObservation, value: str | None, reason: Reason, why: str) -> Patch:
    patch: Object = {"metadata": {"uid": pod.uid, "annotations": {labels.LEAVING: value}}}
    return Patch(resource=POD, name=pod.name, patch=patch, reason=reason, why=why)


def _patch_gate(pod: PodObservation, is_open: bool, reason: Reason, why: str, now: datetime) -> Patch:
    condition = {
        "type": labels.SERVING_GATE,
        "status": str(is_open),
        "reason": GATE_REASONS[is_open],
        "message": why,
        "lastTransitionTime": timestamp(now),
    }
    patch: Object = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    return Patch(resource=POD, name=pod.name, patch=patch, reason=reason, why=why, of_status=True)

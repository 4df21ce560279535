"""Which Kubernetes Events a plan causes, and how one is written. They tell of transitions, never of a lasting state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from pagefleet_operator.api import v1alpha1
from pagefleet_operator.api.conditions import Condition, ConditionStatus, ConditionType, bounded, find_condition
from pagefleet_operator.api.status import LLMServiceStatus, Remedy
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.resources import EVENT, POD, Object
from pagefleet_operator.steps import Create, Delete, Step

MAX_NOTE: Final = 1000
TOLD: Final = (ConditionType.ACCEPTED, ConditionType.DEGRADED, ConditionType.READY)
"""Conditions whose transitions are events; the others say the same in other words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNote:
    """One event about a service."""

    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str
    subject: str | None = None  # the pod or route it is about; notes of one moment differ at least in it


def notes_of_step(step: Step) -> Iterator[EventNote]:
    """Pods that come and go are worth an event, Services are not."""
    if step.resource is not POD or not isinstance(step, Create | Delete):
        return
    did = {Create: "Created", Delete: "Deleted"}[type(step)]
    note = f"{did} pod {step.name}: {step.why}"
    yield EventNote(kind="Normal", reason=step.reason, action=f"{did[:-1]}Pod", note=note)


def notes_of_transitions(old: LLMServiceStatus, new: LLMServiceStatus) -> Iterator[EventNote]:
    """One event for each told condition whose status or reason changed; a cause is told once."""
    told: set[str] = set()
    for kind in TOLD:
        before, after = find_condition(old.conditions, kind), find_condition(new.conditions, kind)
        if after is None or _same(before, after) or after.reason in told:
            continue
        good = (after.status is ConditionStatus.TRUE) != (kind is ConditionType.DEGRADED)
        if before is None and good and kind is ConditionType.DEGRADED:
            continue
        told.add(after.reason)
        level: Literal["Normal", "Warning"] = "Normal" if good or kind is ConditionType.READY else "Warning"
        note = f"{kind} is {after.status}: {after.message}"
        yield EventNote(kind=level, reason=after.reason, action=f"Observe{kind}", note=note)


def notes_of_decisions(old: LLMServiceStatus, new: LLMServiceStatus) -> Iterator[EventNote]:
    """One event for each decision that was carried out since; advice is in the status alone."""
    for decision in reversed(new.decisions):
        if decision not in old.decisions and not decision.advisory:
            yield EventNote(
                kind="Warning" if decision.remedy is Remedy.HOLD else "Normal",
                reason=decision.reason,
                action=decision.remedy,
                note=decision.message,
                subject=decision.subject,
            )


def build_event(note: EventNote, owner: Owner, reporter: str, now: datetime) -> Object:
    """An events.k8s.io/v1 Event; its name follows from what it says and when."""
    moment = now.astimezone(UTC)
    digest = hashlib.sha256(f"{moment.isoformat()} {note}".encode()).hexdigest()
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{owner.key.name}.{digest[:16]}",
            "namespace": owner.key.namespace,
        },
        "eventTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": note.kind,
        "reason": note.reason,
        "action": note.action,
        "note": bounded(note.note, MAX_NOTE),
        "regarding": {
            "apiVersion": v1alpha1.API_VERSION,
            "kind": v1alpha1.KIND,
            "namespace": owner.key.namespace,
            "name": owner.key.name,
            "uid": owner.uid,
        },
        "reportingController": f"{v1alpha1.GROUP}/operator",
        "reportingInstance": bounded(reporter, 128),
    }


def _same(before: Condition | None, after: Condition) -> bool:
    return before is not None and (before.status, before.reason) == (after.status, after.reason)

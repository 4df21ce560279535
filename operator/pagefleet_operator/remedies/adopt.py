"""Which caps are known to be desired: pods come, go, restart, and the operator itself may have been away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.memory import CapMemory, Memory, Restored, TuneMemory
from pagefleet_operator.remedies.reasons import RemedyReason
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.words import Change


def adopt_pods(view: FleetView, memory: Memory) -> TuneMemory:
    """Every ready pod whose cap is known gets a desired cap; pods that are gone are forgotten."""
    tune = memory.tune
    present = {pod.name for pod in view.ready} | {pod.name for pod in view.starting} | set(view.draining)
    caps = {name: cap for name, cap in tune.caps.items() if name in present}
    for pod in view.ready:
        known = caps.get(pod.name)
        if known is None or known.start.uid != pod.window.start.uid:
            desired = _first_desired(pod, view.now_s, memory.restored.get(pod.name))
            if desired is None:
                caps.pop(pod.name, None)
            else:
                caps[pod.name] = CapMemory(start=pod.window.start, desired=desired, changed_s=view.now_s)
    length = tune.length
    if length.desired is not None and length.changed_s is None:
        length = replace(length, changed_s=view.now_s)
    return replace(tune, caps=caps, length=length)


def keep_bounds(view: FleetView, tune: TuneMemory) -> tuple[list[Change], TuneMemory]:
    """Desired caps that the spec, or the engine's own capacity, does not allow any more."""
    changes: list[Change] = []
    caps = dict(tune.caps)
    for pod in view.ready:
        cap = caps.get(pod.name)
        low, high = cap_bounds(view, pod)
        if cap is None or low <= cap.desired <= high:
            continue
        after = min(max(cap.desired, low), high)
        message = f"the cap of {pod.name} must lie within {low} and {high}: it goes from {cap.desired} to {after}"
        changes.append(_change(pod.name, cap.desired, after, RemedyReason.OUT_OF_BOUNDS, message))
        caps[pod.name] = replace(cap, desired=after, changed_s=view.now_s, last_good=None)
    return changes, replace(tune, caps=caps)


def reapply(view: FleetView, tune: TuneMemory) -> tuple[list[Change], TuneMemory]:
    """Engines that report another cap than the desired one: said once, and no change of direction."""
    changes: list[Change] = []
    caps = dict(tune.caps)
    for pod in view.ready:
        cap, reported = caps.get(pod.name), number(pod.window.gauge(Metric.CAP, view.now_s))
        if cap is None or reported is None:
            continue
        restarted = cap.start != pod.window.start
        if restarted:
            cap = replace(cap, start=pod.window.start, settling=False, last_good=None, drift=None)
        overdue = view.now_s - cap.changed_s > pod.window.settings.reapply_after_s
        if reported == cap.desired:
            cap = replace(cap, drift=None)
        elif (restarted or overdue) and cap.drift != reported:
            why = "its engine was restarted" if restarted else "its engine says so"
            message = f"the cap of {pod.name} is {reported:.0f}, {why}: {cap.desired} is applied again"
            changes.append(_change(pod.name, int(reported), cap.desired, RemedyReason.CAP_REAPPLIED, message))
            cap = replace(cap, drift=int(reported))
        caps[pod.name] = cap
    return changes, replace(tune, caps=caps)


def cap_bounds(view: FleetView, pod: ReadyPod) -> tuple[int, int]:
    """What a pod's cap may be: the spec's bounds, and never above what its engine was started for."""
    capacity = number(pod.window.gauge(Metric.CAPACITY, view.now_s))
    high = view.rules.cap.max if capacity is None or capacity < 1 else min(view.rules.cap.max, int(capacity))
    return min(view.rules.cap.min, high), high


def start_cap(view: FleetView, caps: Mapping[str, int]) -> int:
    """What a new pod starts with: what half of the fleet has at most."""
    return middle(caps.values()) or view.rules.cap.initial_cap


def middle(caps: Iterable[int]) -> int | None:
    """The lower median; None of none."""
    known = sorted(caps)
    return known[(len(known) - 1) // 2] if known else None


def _first_desired(pod: ReadyPod, now_s: float, restored: Restored | None) -> int | None:
    reported = number(pod.window.gauge(Metric.CAP, now_s))
    if restored is not None and (reported is None or restored.restarts != pod.window.start.restarts):
        return restored.cap
    return None if reported is None or reported < 1 else int(reported)


def _change(pod: str, before: int, after: int, reason: RemedyReason, message: str) -> Change:
    return Change(remedy=Remedy.TUNE, subject=pod, before=before, after=after, reason=reason, message=message)

"""Room for a route that should move to a finer precision: a replica where the spec allows one more, else lower caps.

    cap -> max(min, floor(running x allowed / needed))      on all pods, at most once per window

Caps do not rise, and no replica is removed, while the need is there. It ends with the move, or when the conclusion that
the route is worse off has expired.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.adopt import cap_bounds
from pagefleet_operator.remedies.demand import Need
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod, RoomNeed
from pagefleet_operator.remedies.memory import CapMemory, TuneMemory
from pagefleet_operator.remedies.reasons import RemedyReason
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.turns import moved
from pagefleet_operator.remedies.words import Change


def replica_for_room(view: FleetView) -> Need | None:
    """One replica more, if a route needs room."""
    if view.room is None:
        return None
    return Need(replicas=view.replicas + 1, reason=RemedyReason.ROOM_FOR_PRECISION, sentence=view.room.sentence)


def lower_caps(view: FleetView, tune: TuneMemory) -> tuple[list[Change], TuneMemory]:
    """The caps that make the room, where no replica can, or is on its way."""
    if view.room is None or _may_add(view) or view.starting or not _rested(view, tune):
        return [], tune
    changes: list[Change] = []
    caps = dict(tune.caps)
    for pod in view.ready:
        cap, running = caps.get(pod.name), number(pod.window.gauge(Metric.REQUESTS_RUNNING, view.now_s))
        if cap is not None and running is not None:
            caps[pod.name] = _lower(view, view.room, pod, cap, running, changes)
    return changes, replace(tune, caps=caps)


def _lower(
    view: FleetView, need: RoomNeed, pod: ReadyPod, cap: CapMemory, running: float, changes: list[Change]
) -> CapMemory:
    low, _ = cap_bounds(view, pod)
    after = max(low, int(running * need.allowed_share / need.needed_share))
    if after >= cap.desired:
        return cap
    message = f"{need.sentence}: with {running:.0f} running the cap of {pod.name} goes from {cap.desired} to {after}"
    changes.append(
        Change(
            remedy=Remedy.TUNE,
            subject=pod.name,
            before=cap.desired,
            after=after,
            reason=RemedyReason.ROOM_FOR_PRECISION,
            message=message,
        )
    )
    turns = moved(cap.turns, view.now_s, rising=False)
    return replace(
        cap, desired=after, changed_s=view.now_s, last_good=None, cut=True, settling=True, turns=turns, drift=None
    )


def _rested(view: FleetView, tune: TuneMemory) -> bool:
    """Whether a window has shown what the last change of any cap did."""
    caps = [cap for pod in view.ready if (cap := tune.caps.get(pod.name))]
    return all(not cap.settling and view.now_s - cap.changed_s >= view.settings.window_s for cap in caps)


def _may_add(view: FleetView) -> bool:
    rules = view.rules.autoscaling
    return (
        rules is not None
        and rules.mode is Mode.AUTO
        and view.foreign_autoscaler is None
        and view.replicas < rules.max_replicas
        and rules.behavior.scale_up.select_policy != "Disabled"
    )

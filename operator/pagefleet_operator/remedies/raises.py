"""The second rule of tuning: caps go up by small steps, on one pod first, and on the others once it has held.

A raise needs a queue that a higher cap would shorten: requests wait in every look since the last change, the cap is
full, the KV pool has room for it in proportion, nothing is swapped, and tokens come in time. Without a queue a cap
that is below the spec's start value goes back towards it after a long quiet time: in one step, as far as the pool would
hold requests like those that run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.adopt import cap_bounds
from pagefleet_operator.remedies.coarse import clock
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.memory import Canary, CapMemory, TuneMemory
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.pressure import pressure_since
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Sample, Value
from pagefleet_operator.remedies.turns import may_move, may_move_at, moved
from pagefleet_operator.remedies.words import Change, count, first_absent, measured, unknown


@dataclass(slots=True)
class Raises:
    """What this look leads to."""

    changes: list[Change] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    hopeful: bool = False  # a raise for a queue is under way, or would be at its next turn


def raise_caps(view: FleetView, tune: TuneMemory) -> tuple[Raises, TuneMemory]:
    """The next step of a canary that is under way, or the beginning of one."""
    raises = Raises()
    if tune.canary is not None:
        tune = _follow(view, tune, tune.canary, raises)
        if tune.canary is not None or raises.changes:
            return raises, tune
    return raises, _begin(view, tune, raises)


def _follow(view: FleetView, tune: TuneMemory, canary: Canary, raises: Raises) -> TuneMemory:
    """Wait for the canary, then let the others follow."""
    pod = next((pod for pod in view.ready if pod.name == canary.pod), None)
    cap = tune.caps.get(canary.pod)
    if pod is None or cap is None or cap.desired != canary.cap:
        return replace(tune, canary=None)
    raises.hopeful = True
    settings, held_s = pod.window.settings, view.now_s - canary.since_s
    reported = pod.window.gauge(Metric.CAP, view.now_s)
    calm = pressure_since(pod.window, canary.since_s)
    if held_s < settings.canary_s or reported != Value(canary.cap) or calm != Value(0.0):
        since = clock(view.time, -held_s)
        message = f"{pod.name} tries a cap of {canary.cap} since {since}, for {settings.canary_s:.0f} s at least"
        raises.holds.append(Hold(remedy=Remedy.TUNE, reason=HoldReason.CANARY_RUNNING, message=message))
        lost = held_s > settings.canary_s + settings.judge_s  # swapped requests or silence: not a raise to repeat
        return replace(tune, canary=None) if lost else tune
    caps = dict(tune.caps)
    for other in view.ready:
        known = caps.get(other.name)
        if known is None or known.desired >= canary.cap or not _may_follow(view, other, known, canary):
            continue
        after = canary.cap if canary.quiet else min(known.desired + _step(view), canary.cap)
        message = (
            f"{pod.name} has held a cap of {canary.cap} for {held_s:.0f} s without swapping: "
            f"{other.name} goes from {known.desired} to {after}"
        )
        raises.changes.append(_change(view, other, known.desired, after, RemedyReason.CANARY_HELD, message))
        caps[other.name] = _raised(known, after, view.now_s)
    return replace(tune, caps=caps, canary=None)


def _may_follow(view: FleetView, pod: ReadyPod, cap: CapMemory, canary: Canary) -> bool:
    _, high = cap_bounds(view, pod)
    return (
        canary.cap <= high
        and not cap.settling
        and pod.window.is_full(view.now_s)
        and pressure_since(pod.window, _since(view, pod, cap)) == Value(0.0)
        and _rested(view, pod, cap)
        and may_move(cap.turns, view.now_s, pod.window.settings, rising=True)
        and (not canary.quiet or _fits(view, pod, cap, canary.cap))
    )


def _begin(view: FleetView, tune: TuneMemory, raises: Raises) -> TuneMemory:
    """The lowest cap that would gain by it is raised first."""
    candidates = sorted((cap.desired, pod.name, pod) for pod in view.ready if (cap := tune.caps.get(pod.name)))
    for _, name, pod in candidates:
        cap = tune.caps[name]
        after = min(cap.desired + _step(view), cap_bounds(view, pod)[1])
        found = _queue_with_room(view, pod, cap, after, raises) or _quiet_again(view, tune, pod, cap)
        if found is None:
            continue
        raises.hopeful = raises.hopeful or found[0] is RemedyReason.QUEUE_WITH_ROOM
        if not _may_begin(view, pod, cap, raises):
            continue
        reason, after, message = found
        raises.changes.append(_change(view, pod, cap.desired, after, reason, message))
        quiet = reason is RemedyReason.QUIET_AGAIN
        others = [other for other in view.ready if other.name != name and _below(tune, other, after)]
        canary = Canary(pod=name, cap=after, since_s=view.now_s, quiet=quiet) if others else None
        return replace(tune, caps={**tune.caps, name: _raised(cap, after, view.now_s)}, canary=canary)
    return tune


def _below(tune: TuneMemory, pod: ReadyPod, cap: int) -> bool:
    known = tune.caps.get(pod.name)
    return known is not None and known.desired < cap


def _may_begin(view: FleetView, pod: ReadyPod, cap: CapMemory, raises: Raises) -> bool:
    settings = pod.window.settings
    if not may_move(cap.turns, view.now_s, settings, rising=True):
        moment = may_move_at(cap.turns, settings, rising=True) or view.now_s
        again = clock(view.time, moment - view.now_s)
        message = f"the cap of {pod.name} has turned lately; it may rise again at {again}"
        hold = Hold(remedy=Remedy.TUNE, reason=HoldReason.TURNED_RECENTLY, message=message, subject=pod.name)
        raises.holds.append(hold)
        raises.hopeful = False
        return False
    return _rested(view, pod, cap)


def _rested(view: FleetView, pod: ReadyPod, cap: CapMemory) -> bool:
    """One change per pod and interval; after a cut a whole window must have been calm."""
    settings = pod.window.settings
    return view.now_s - cap.changed_s >= (settings.window_s if cap.cut else settings.raise_every_s)


def _queue_with_room(
    view: FleetView, pod: ReadyPod, cap: CapMemory, after: int, raises: Raises
) -> tuple[RemedyReason, int, str] | None:
    window, since = pod.window, _since(view, pod, cap)
    if after <= cap.desired or cap.settling or not window.is_full(view.now_s):
        return None
    waiting, running = window.lowest(Metric.REQUESTS_WAITING, since), window.mean(Metric.REQUESTS_RUNNING, since)
    usage, pressure = window.highest(Metric.KV_CACHE_USAGE, since), pressure_since(window, since)
    samples = {
        Metric.REQUESTS_WAITING: waiting,
        Metric.REQUESTS_RUNNING: running,
        Metric.KV_CACHE_USAGE: usage,
        Metric.PREEMPTIONS: pressure,
    }
    if absent := first_absent(samples.items()):
        if window.since(since):
            raises.holds.append(unknown(Remedy.TUNE, pod.name, *absent))
        return None
    queue, busy, used, pressed = (sample.value for sample in samples.values() if isinstance(sample, Value))
    settings = window.settings
    expected = used * after / cap.desired
    if queue < 1 or pressed > 0 or busy < (1 - settings.tolerance) * cap.desired or expected > settings.kv_room:
        return None
    if not _tokens_in_time(view, pod, since):
        return None
    message = (
        f"{count(queue, 'request')} or more waited all the time although {used:.0%} of the KV pool was used at most "
        f"and nothing was swapped: the cap of {pod.name} goes from {cap.desired} to {after}"
    )
    return RemedyReason.QUEUE_WITH_ROOM, after, message


def _quiet_again(
    view: FleetView, tune: TuneMemory, pod: ReadyPod, cap: CapMemory
) -> tuple[RemedyReason, int, str] | None:
    settings = pod.window.settings
    quiet_s = view.now_s - max(tune.swapped_s or 0.0, tune.queued_s or 0.0)
    if quiet_s < settings.return_after_s or cap.settling or not pod.window.is_full(view.now_s):
        return None
    start, fits = min(view.rules.cap.initial_cap, cap_bounds(view, pod)[1]), _would_fit(view, pod, cap)
    after = start if fits is None else min(start, fits)
    if after <= cap.desired or (after < cap.desired + _step(view) and after < start):
        return None
    message = (
        f"nothing waited or was swapped for {quiet_s:.0f} s: the cap of {pod.name} goes from {cap.desired} to {after}, "
        f"towards the {view.rules.cap.initial_cap} that engines start with"
    )
    return RemedyReason.QUIET_AGAIN, after, message


def _fits(view: FleetView, pod: ReadyPod, cap: CapMemory, after: int) -> bool:
    most = _would_fit(view, pod, cap)
    return most is None or after <= most


def _would_fit(view: FleetView, pod: ReadyPod, cap: CapMemory) -> int | None:
    """How many requests like those that run the pool would hold; None: none runs, so nothing is known against any."""
    window, since = pod.window, _since(view, pod, cap)
    usage = window.highest(Metric.KV_CACHE_USAGE, since)
    running, most = window.mean(Metric.REQUESTS_RUNNING, since), window.highest(Metric.REQUESTS_RUNNING, since)
    if not isinstance(usage, Value) or not isinstance(running, Value) or not isinstance(most, Value):
        return 0
    if most.value == 0 or usage.value == 0:
        return None
    return int(window.settings.kv_room * max(running.value, 1.0) / usage.value)


def _tokens_in_time(view: FleetView, pod: ReadyPod, since: float) -> bool:
    target = view.rules.targets.inter_token_s
    if target is None:
        return True
    latency = pod.window.latency(Metric.INTER_TOKEN_LATENCY, since)
    return isinstance(latency, Value) and latency.value <= target * (1 - pod.window.settings.tolerance)


def _since(view: FleetView, pod: ReadyPod, cap: CapMemory) -> float:
    return max(cap.changed_s, view.now_s - pod.window.settings.window_s)


def _step(view: FleetView) -> int:
    settings = view.settings
    return max(1, math.ceil(view.rules.cap.max * settings.raise_share))


def _raised(cap: CapMemory, after: int, now_s: float) -> CapMemory:
    turns = moved(cap.turns, now_s, rising=True)
    held = cap.last_good is not None  # the raise before this one was judged and did no harm
    return replace(
        cap,
        desired=after,
        changed_s=now_s,
        last_good=cap.desired,
        cut=False,
        turns=replace(turns, failures=0) if held else turns,
        drift=None,
    )


def _change(view: FleetView, pod: ReadyPod, before: int, after: int, reason: RemedyReason, message: str) -> Change:
    gauges = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.REQUESTS_SWAPPED, Metric.KV_CACHE_USAGE)
    samples: dict[Metric, Sample] = {metric: pod.window.gauge(metric, view.now_s) for metric in gauges}
    return Change(
        remedy=Remedy.TUNE,
        subject=pod.name,
        before=before,
        after=after,
        reason=reason,
        message=message,
        measurements=measured(samples),
    )

"""The first rule of tuning: where requests have to make room, or tokens come too slowly, the cap goes down at once.

    cap -> max(min, floor(0.75 x running))        from the number running, not from the old cap
    cap -> the cap before the last raise          while that raise is being judged

Then nothing more until running <= cap was seen: requests that are swapped already would wind the cap down otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.adopt import cap_bounds
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.memory import CapMemory, TuneMemory
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.pressure import Pressed, new_pressure
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Value, number
from pagefleet_operator.remedies.turns import moved
from pagefleet_operator.remedies.words import Change, figure, measured, unknown


@dataclass(slots=True)
class Cuts:
    """What this look leads to, pod by pod."""

    changes: list[Change] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    pressed: set[str] = field(default_factory=set)  # pods under pressure now
    at_minimum: dict[str, Pressed] = field(default_factory=dict)  # swapping, and the cap cannot help any more


def cut_caps(view: FleetView, tune: TuneMemory) -> tuple[Cuts, TuneMemory]:
    """All pods that show the pressure, at once."""
    cuts, caps, canary = Cuts(), dict(tune.caps), tune.canary
    for pod in view.ready:
        cap = caps.get(pod.name)
        if cap is None:
            continue
        caps[pod.name] = _look_at(view, pod, cap, cuts)
        if canary is not None and canary.pod == pod.name and caps[pod.name].desired < cap.desired:
            canary = None
    return cuts, replace(tune, caps=caps, canary=canary)


def _look_at(view: FleetView, pod: ReadyPod, cap: CapMemory, cuts: Cuts) -> CapMemory:
    pressed = new_pressure(pod, view.now_s)
    running = pod.window.gauge(Metric.REQUESTS_RUNNING, view.now_s)
    if not isinstance(pressed, Pressed | None):
        assert not isinstance(pressed, Value)
        cuts.holds.append(unknown(Remedy.TUNE, pod.name, Metric.PREEMPTIONS, pressed))
        return cap
    if not isinstance(running, Value):
        cuts.holds.append(unknown(Remedy.TUNE, pod.name, Metric.REQUESTS_RUNNING, running))
        return cap
    if pressed is not None:
        cuts.pressed.add(pod.name)
    if cap.settling:
        return _settle(pod, cap, running.value, cuts)
    if pressed is not None:
        return _cut(view, pod, cap, RemedyReason.REQUESTS_SWAPPED, pressed, running.value, cuts)
    if slow := _slow_tokens(view, pod, cap, running.value):
        cuts.pressed.add(pod.name)
        return _cut(view, pod, cap, RemedyReason.TOKENS_TOO_SLOW, slow, running.value, cuts)
    return cap


def _settle(pod: ReadyPod, cap: CapMemory, running: float, cuts: Cuts) -> CapMemory:
    """A look that sees running <= cap ends the wait, but what it counted lies before: the next one may act."""
    if running <= cap.desired:
        return replace(cap, settling=False)
    message = f"{pod.name} still runs more requests than its cap of {cap.desired}: no further step until they fit"
    cuts.holds.append(Hold(remedy=Remedy.TUNE, reason=HoldReason.CAP_SETTLING, message=message, subject=pod.name))
    return cap


def _cut(
    view: FleetView,
    pod: ReadyPod,
    cap: CapMemory,
    reason: RemedyReason,
    found: Pressed | str,
    running: float,
    cuts: Cuts,
) -> CapMemory:
    low, _ = cap_bounds(view, pod)
    settings = pod.window.settings
    judged = cap.last_good is not None and view.now_s - cap.changed_s <= settings.judge_s
    restored = cap.last_good if judged and cap.last_good is not None and cap.last_good < cap.desired else None
    after = restored if restored is not None else max(low, int(settings.cut_factor * running))
    if after >= cap.desired:
        _cannot_cut(pod, cap, found, cuts)
        return cap
    sentence = found.sentence if isinstance(found, Pressed) else found
    how = (
        f"{view.now_s - cap.changed_s:.0f} s after a raise, which is taken back"
        if restored is not None
        else f"{settings.cut_factor:g} of the running"
        if after > low
        else "its minimum"
    )
    message = f"{sentence} with {running:.0f} running: the cap of {pod.name} goes from {cap.desired} to {after} ({how})"
    cuts.changes.append(
        Change(
            remedy=Remedy.TUNE,
            subject=pod.name,
            before=cap.desired,
            after=after,
            reason=reason if restored is None else RemedyReason.LAST_GOOD_RESTORED,
            message=message,
            measurements=_measurements(view, pod),
        )
    )
    return replace(
        cap,
        desired=after,
        changed_s=view.now_s,
        last_good=None,
        cut=True,
        settling=True,
        turns=moved(cap.turns, view.now_s, rising=False, harm=restored is not None),
        drift=None,
    )


def _cannot_cut(pod: ReadyPod, cap: CapMemory, found: Pressed | str, cuts: Cuts) -> None:
    if isinstance(found, Pressed):
        cuts.at_minimum[pod.name] = found
    trouble = "requests have to make room" if isinstance(found, Pressed) else "tokens come too slowly"
    message = f"{trouble}, and the cap of {pod.name} is {cap.desired}: it goes no lower"
    cuts.holds.append(Hold(remedy=Remedy.TUNE, reason=HoldReason.AT_MINIMUM, message=message, subject=pod.name))


def _slow_tokens(view: FleetView, pod: ReadyPod, cap: CapMemory, running: float) -> str | None:
    """The beginning of a message when tokens have come too slowly for a window of this very cap, and it was full."""
    target, window = view.rules.targets.inter_token_s, pod.window
    since = max(cap.changed_s, view.now_s - window.settings.window_s)
    full_window = window.is_full(view.now_s) and view.now_s - cap.changed_s >= window.settings.window_s
    if target is None or not full_window or running < cap.desired:
        return None
    latency = number(window.latency(Metric.INTER_TOKEN_LATENCY, since))
    if latency is None or latency <= target * (1 + window.settings.tolerance):
        return None
    share = window.settings.latency_quantile
    return f"the {share:.0%} quantile of the time between tokens was {figure(latency)} s, above {figure(target)} s,"


def _measurements(view: FleetView, pod: ReadyPod) -> dict[str, str]:
    gauges = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.REQUESTS_SWAPPED, Metric.KV_CACHE_USAGE)
    found = {metric: pod.window.gauge(metric, view.now_s) for metric in gauges}
    return measured(
        found | {metric: pod.window.new(metric, view.now_s) for metric in (Metric.PREEMPTIONS, Metric.SWAPS)}
    )

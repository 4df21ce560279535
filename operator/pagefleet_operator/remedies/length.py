"""The last rule of tuning, opt-in: with every cap that swaps at its minimum, new requests must be shorter.

length -> max(min, floor(0.75 x length))      at most once per window
length -> min(spec's, ceil(length / 0.75))    after a long time without swapping, as rarely as a cap may turn
length -> the spec's                          when the spec no longer allows less
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.memory import LengthMemory, TuneMemory
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.pressure import Pressed
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.turns import may_move, moved
from pagefleet_operator.remedies.words import Change


@dataclass(slots=True)
class Lengths:
    """What this look leads to."""

    changes: list[Change] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)


def tune_length(view: FleetView, tune: TuneMemory, at_minimum: Mapping[str, Pressed]) -> tuple[Lengths, TuneMemory]:
    """Lower it, raise it, say that an engine has another one, or nothing."""
    found, allowed, longest = Lengths(), view.rules.tuning.max_model_len, view.rules.max_model_len
    if longest is None:
        if allowed is not None and at_minimum:
            found.holds.append(
                _hold(HoldReason.LENGTH_UNKNOWN, "the length remedy needs engine.maxModelLen in the spec")
            )
        return found, replace(tune, length=LengthMemory())
    settings, length = view.settings, _follow_spec(_adopt(view, tune.length, longest), longest)
    if allowed is None:
        return found, replace(tune, length=_give_back(view, length, longest, found))
    current = longest if length.desired is None else min(max(length.desired, allowed.min), longest)
    length = _reapply(view, replace(length, desired=None if length.desired is None else current), settings, found)
    if at_minimum:
        length = _lower(view, length, current, allowed.min, at_minimum, settings, found)
    elif current < longest:
        length = _raise(view, tune, length, current, longest, settings, found)
    return found, replace(tune, length=length)


def is_shortened(view: FleetView, tune: TuneMemory) -> bool:
    """Whether new requests must be shorter than the spec says."""
    longest, desired = view.rules.max_model_len, tune.length.desired
    return longest is not None and desired is not None and desired < longest


def _adopt(view: FleetView, length: LengthMemory, longest: int) -> LengthMemory:
    """An engine that was shortened, of which nothing is remembered: tuning was off in between, or the operator away."""
    if length.desired is not None:
        return length
    reported = ((pod, number(pod.window.gauge(Metric.MAX_MODEL_LEN, view.now_s))) for pod in view.ready if pod.longest)
    short = [int(value) for pod, value in reported if value is not None and value < pod.length_of(longest)]
    return replace(length, desired=min(short), full=longest, changed_s=view.now_s) if short else length


def _follow_spec(length: LengthMemory, longest: int) -> LengthMemory:
    """What is not shortened is as long as the spec says, also when the spec says something else than before."""
    is_whole = length.desired is not None and length.full is not None and length.desired >= length.full
    return replace(length, full=longest, desired=longest if is_whole else length.desired)


def _give_back(view: FleetView, length: LengthMemory, longest: int, found: Lengths) -> LengthMemory:
    """The opt-in is gone: nobody would ever lengthen what was shortened under it."""
    if length.desired is None or length.desired >= longest:
        return length
    message = (
        "tuning.maxModelLen is gone from the spec: "
        f"new requests may have {longest} tokens again instead of {length.desired}"
    )
    found.changes.append(_change(length.desired, longest, RemedyReason.LENGTH_RESTORED, message))
    return replace(length, desired=longest, changed_s=view.now_s, drift=())


def _lower(
    view: FleetView,
    length: LengthMemory,
    current: int,
    least: int,
    at_minimum: Mapping[str, Pressed],
    settings: LoopSettings,
    found: Lengths,
) -> LengthMemory:
    after = max(least, int(settings.cut_factor * current))
    if after >= current:
        found.holds.append(_hold(HoldReason.AT_MINIMUM, f"maxModelLen is {current}, the least that the spec allows"))
        return length
    if length.changed_s is not None and view.now_s - length.changed_s < settings.window_s:
        return length
    pod, pressed = sorted(at_minimum.items())[0]
    message = (
        f"{pressed.sentence} on {pod} although its cap is at its minimum: "
        f"new requests may have {after} tokens instead of {current}"
    )
    found.changes.append(_change(current, after, RemedyReason.LENGTH_LOWERED, message))
    turns = moved(length.turns, view.now_s, rising=False, harm=length.turns.rising is True)
    return LengthMemory(desired=after, full=length.full, changed_s=view.now_s, turns=turns)


def _raise(
    view: FleetView,
    tune: TuneMemory,
    length: LengthMemory,
    current: int,
    longest: int,
    settings: LoopSettings,
    found: Lengths,
) -> LengthMemory:
    quiet_s = view.now_s - max(tune.swapped_s or 0.0, length.changed_s or 0.0)
    if quiet_s < settings.return_after_s:
        return length
    if not may_move(length.turns, view.now_s, settings, rising=True):
        message = f"maxModelLen has turned lately and stays at {current}"
        found.holds.append(_hold(HoldReason.TURNED_RECENTLY, message))
        return length
    after = min(longest, math.ceil(current / settings.cut_factor))
    message = f"nothing was swapped for {quiet_s:.0f} s: new requests may have {after} tokens instead of {current}"
    found.changes.append(_change(current, after, RemedyReason.LENGTH_RESTORED, message))
    turns = moved(length.turns, view.now_s, rising=True)
    return LengthMemory(desired=after, full=length.full, changed_s=view.now_s, turns=turns)


def _reapply(view: FleetView, length: LengthMemory, settings: LoopSettings, found: Lengths) -> LengthMemory:
    """Engines that report another limit than the desired one: said once."""
    if length.desired is None or length.changed_s is None or view.now_s - length.changed_s <= settings.reapply_after_s:
        return length
    drift: dict[str, int] = {}
    for pod in view.ready:
        value = number(pod.window.gauge(Metric.MAX_MODEL_LEN, view.now_s))
        if value is not None and value != pod.length_of(length.desired):
            drift[pod.name] = int(value)
    for name, value in sorted(drift.items()):
        if name not in length.drift:
            message = f"the engine of {name} accepts {value} tokens: {length.desired} is applied again"
            found.changes.append(_change(value, length.desired, RemedyReason.LENGTH_REAPPLIED, message, name))
    return replace(length, drift=tuple(sorted(drift)))


def _change(before: int, after: int, reason: RemedyReason, message: str, subject: str | None = None) -> Change:
    return Change(
        remedy=Remedy.TUNE, subject=subject, before=before, after=after, reason=reason, message=message, measurements={}
    )


def _hold(reason: HoldReason, message: str) -> Hold:
    return Hold(remedy=Remedy.TUNE, reason=reason, message=message)

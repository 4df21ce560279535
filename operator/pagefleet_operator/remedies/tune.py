"""The first remedy: the running cap of each engine, and as a last resort the length of new requests.

adopt     pods that came, went or restarted; caps that left their bounds; engines that drifted
cut       every pod that shows pressure, at once
room      lower caps for a route that should move to a finer precision
length    only when a cap at its minimum did not help, and only if the spec says so
raise     one pod, then the others, and never in a look that saw pressure anywhere
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.adopt import adopt_pods, keep_bounds, reapply
from pagefleet_operator.remedies.cuts import cut_caps
from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.length import is_shortened, tune_length
from pagefleet_operator.remedies.make_room import lower_caps
from pagefleet_operator.remedies.memory import Memory, TuneMemory
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.raises import Raises, raise_caps
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.words import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What one look leads to, and what scaling has to know of it."""

    changes: tuple[Change, ...]
    holds: tuple[Hold, ...]
    memory: TuneMemory
    adopted: TuneMemory  # what Advisory mode keeps: the pods, without the changes
    pressed: bool  # some pod is under pressure, or drains down after a cut
    hopeful: bool  # a raise for a queue is under way, or would be at its next turn
    raised: bool
    cut_lately: bool = False  # within the window, so that its effect is not seen yet


def decide_caps(view: FleetView, memory: Memory, *, raises: bool = True) -> Tuned:
    """The caps from now on. `raises=False`: something else grows in this look."""
    adopted = _remember(view, adopt_pods(view, memory))
    bounded, tune = keep_bounds(view, adopted)
    drifted, tune = reapply(view, tune)
    cuts, tune = cut_caps(view, tune)
    room: list[Change] = []
    if not cuts.pressed:
        room, tune = lower_caps(view, tune)
    lengths, tune = tune_length(view, tune, cuts.at_minimum)
    ready = {pod.name for pod in view.ready}  # a crashed pod runs nothing that could drain down
    draining_down = any(cap.settling for name, cap in tune.caps.items() if name in ready)
    raised = Raises()
    calm = not cuts.pressed and not draining_down and not lengths.changes and not is_shortened(view, tune)
    calm = calm and view.room is None
    if raises and calm:
        raised, tune = raise_caps(view, tune)
    return Tuned(
        changes=(*bounded, *drifted, *cuts.changes, *room, *lengths.changes, *raised.changes),
        holds=(*cuts.holds, *lengths.holds, *raised.holds),
        memory=tune,
        adopted=adopted,
        pressed=bool(cuts.pressed) or draining_down,
        hopeful=raised.hopeful,
        raised=bool(raised.changes),
        cut_lately=any(cap.cut and view.now_s - cap.changed_s < view.settings.window_s for cap in tune.caps.values()),
    )


def _remember(view: FleetView, tune: TuneMemory) -> TuneMemory:
    """When it last swapped or queued; a pod that is not known might have."""
    swapped_s, queued_s = tune.swapped_s, tune.queued_s
    if swapped_s is None or any(_maybe(view, _SWAPPING)):
        swapped_s = view.now_s
    if queued_s is None or any(_maybe(view, (Metric.REQUESTS_WAITING,))):
        queued_s = view.now_s
    return replace(tune, swapped_s=swapped_s, queued_s=queued_s)


_SWAPPING = (Metric.REQUESTS_SWAPPED, Metric.PREEMPTIONS, Metric.SWAPS)


def _maybe(view: FleetView, metrics: Iterable[Metric]) -> Iterable[bool]:
    for pod in view.ready:
        for metric in metrics:
            counts = metric in (Metric.PREEMPTIONS, Metric.SWAPS)
            sample = pod.window.new(metric, view.now_s) if counts else pod.window.gauge(metric, view.now_s)
            yield number(sample) != 0

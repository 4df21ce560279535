"""Whether one pod is under pressure now, was so lately, or has room: questions that remedies ask of its window."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.fleet import ReadyPod
from pagefleet_operator.remedies.samples import NOTHING_YET, Sample, Value, number
from pagefleet_operator.remedies.window import PodWindow


@dataclass(frozen=True, slots=True)
class Pressed:
    """Running requests had to make room since the last look."""

    swapped_out: int
    preempted: int
    over_s: float  # the time between the two looks

    @property
    def sentence(self) -> str:
        """The beginning of a message."""
        most = max(self.swapped_out, self.preempted)
        verb = "swapped out" if self.swapped_out >= self.preempted else "preempted"
        noun = "1 request was" if most == 1 else f"{most} requests were"
        return f"{noun} {verb} in the last {self.over_s:.0f} s"


def new_pressure(pod: ReadyPod, now_s: float) -> Pressed | Sample | None:
    """What is new since the last look: pressure, None, or a sample that says why nobody knows.

    What is known counts: one of the two counters is enough to see pressure, or its absence.
    """
    window = pod.window
    swaps, preemptions = window.new(Metric.SWAPS, now_s), window.new(Metric.PREEMPTIONS, now_s)
    known = [number(sample) for sample in (swaps, preemptions)]
    if known == [None, None]:
        return preemptions
    swapped_out, preempted = (int(value or 0) for value in known)
    if max(swapped_out, preempted) == 0:
        return None
    return Pressed(swapped_out, preempted, window.interval_s)


def pressure_since(window: PodWindow, since_s: float) -> Sample:
    """How often requests had to make room in the looks after a moment; highest swapped count included."""
    parts = [
        window.gained(Metric.PREEMPTIONS, since_s),
        window.gained(Metric.SWAPS, since_s),
        window.highest(Metric.REQUESTS_SWAPPED, since_s),
    ]
    total = 0.0
    for part in parts:
        if not isinstance(part, Value):
            return part
        total += part.value
    return Value(total) if window.since(since_s) else NOTHING_YET

"""What an engine's counters gained from one scrape to the next."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.readings import Begun, Buckets, Histogram, Readings, Structured
from pagefleet_operator.remedies.samples import NOTHING_YET, Invalid, Missing, Sample, Value

_Labels = TypeVar("_Labels", bound=Hashable)
_FIRST: Final = Missing("there is no earlier look to compare with")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Increments. A metric that cannot be compared is not a value."""

    counters: Mapping[Metric, Sample] = field(default_factory=dict)
    histograms: Mapping[Metric, Histogram] = field(default_factory=dict)
    structured: Structured = _FIRST
    begun: Begun = _FIRST


NO_GAINS: Final = Gains()


def has_restarted(before: Readings, now: Readings) -> bool:
    """Whether any counter is below what it was: only a new process does that."""
    return any(
        isinstance(old, Value) and isinstance(new, Value) and new.value < old.value
        for metric, new in now.counters.items()
        for old in [before.counters.get(metric, NOTHING_YET)]
    )


def gains_between(before: Readings | None, now: Readings) -> Gains:
    """The increments. Without `before` the engine is a new one, and everything was gained since its start at 0."""
    return Gains(
        counters={
            metric: _counter(before.counters.get(metric, NOTHING_YET) if before else Value(0.0), new)
            for metric, new in now.counters.items()
        },
        histograms={
            metric: _buckets(before.histograms.get(metric, NOTHING_YET) if before else None, new)
            for metric, new in now.histograms.items()
        },
        structured=_labelled(before.structured if before else {}, now.structured, of="structured outputs"),
        begun=_labelled(before.begun if before else {}, now.begun, of="prompts"),
    )


def merge_buckets(parts: Sequence[Histogram]) -> Histogram | None:
    """The sum of several gains; None without any. One that is not known makes the sum unknown."""
    known = [part for part in parts if isinstance(part, Buckets)]
    if len(known) < len(parts):
        return next(part for part in parts if not isinstance(part, Buckets))
    if not known:
        return None
    if any(part.bounds != known[0].bounds for part in known):
        return Invalid("the bounds of the histogram changed")
    return Buckets(known[0].bounds, tuple(map(sum, zip(*(part.counts for part in known), strict=True))))


def quantile(buckets: Buckets, share: float) -> float:
    """The value that `share` of the observations do not exceed, linear inside a bucket; 0 without observations.

    As Prometheus' `histogram_quantile` does: an observation beyond the last finite bound counts as that bound.
    """
    total = buckets.counts[-1]
    rank, below, low = share * total, 0.0, 0.0
    for bound, count in zip(buckets.bounds, buckets.counts, strict=True):
        if count >= rank and count > below:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        below, low = count, bound
    return 0.0


def _counter(before: Sample, now: Sample) -> Sample:
    if not isinstance(now, Value):
        return now
    return Value(now.value - before.value) if isinstance(before, Value) else _FIRST


def _buckets(before: Histogram | None, now: Histogram) -> Histogram:
    if not isinstance(now, Buckets) or before is None:
        return now
    if not isinstance(before, Buckets):
        return _FIRST
    if before.bounds != now.bounds:
        return Invalid("the bounds of the histogram changed")
    gained = tuple(new - old for new, old in zip(now.counts, before.counts, strict=True))
    falls = any(later < earlier for earlier, later in zip((0.0, *gained), gained, strict=False))
    return Invalid("a bucket lost observations") if falls else Buckets(now.bounds, gained)


def _labelled(
    before: Mapping[_Labels, float] | Missing | Invalid, now: Mapping[_Labels, float] | Missing | Invalid, *, of: str
) -> Mapping[_Labels, float] | Missing | Invalid:
    """The increment of each series; one that was not there before began at 0."""
    if isinstance(now, Missing | Invalid):
        return now
    if isinstance(before, Missing | Invalid):
        return _FIRST
    gained = {labels: count - before.get(labels, 0.0) for labels, count in now.items()}
    return Invalid(f"a counter of {of} went back") if any(n < 0 for n in gained.values()) else gained

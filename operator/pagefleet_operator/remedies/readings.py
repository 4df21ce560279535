"""What one scrape of one engine says, by the metric names of the engine's contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.samples import Invalid, Missing, Sample

GAUGES: Final = (
    Metric.REQUESTS_RUNNING,
    Metric.REQUESTS_WAITING,
    Metric.REQUESTS_SWAPPED,
    Metric.KV_CACHE_USAGE,
    Metric.CAP,
    Metric.CAPACITY,
    Metric.MAX_MODEL_LEN,
)
COUNTERS: Final = (
    Metric.PREEMPTIONS,
    Metric.SWAPS,
    Metric.RECOMPUTES,
    Metric.REFUSED,  # only those refused because the queue was full
    Metric.REQUEST_SUCCESS,  # over all reasons
    Metric.STEPS,
)
HISTOGRAMS: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.INTER_TOKEN_LATENCY)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: how many observations were at most each bound. The last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]  # cumulative


Histogram = Buckets | Missing | Invalid


class Verdicts(NamedTuple):
    """Which structured outputs one counter counts."""

    route: str
    precision: str
    constrained: bool
    outcome: str


Structured = Mapping[Verdicts, float] | Missing | Invalid
"""Structured outputs since the engine's start. Empty: the engine counts them and there were none."""


Begun = Mapping[tuple[str, str], float] | Missing | Invalid
"""Prompts that began to be answered, by route and precision. Empty: none, or an engine that does not count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One scrape. Every metric of the three tuples above has an entry."""

    gauges: Mapping[Metric, Sample]
    counters: Mapping[Metric, Sample]
    histograms: Mapping[Metric, Histogram]
    structured: Structured = field(default_factory=dict)
    begun: Begun = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScrapeFailed:
    """There was no answer, or none that could be read."""

    why: str

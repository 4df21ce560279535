"""Reads the text of one scrape. The only place that knows Prometheus' text format; hostile text never raises.

A value that is not finite, negative, out of its range, sent twice, or of another type than the contract's is `Invalid`;
a series that is not there is `Missing`. Parsing takes long, so lines that were not asked for are dropped before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.readings import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    Begun,
    Buckets,
    Histogram,
    Readings,
    ScrapeFailed,
    Structured,
    Verdicts,
)
from pagefleet_operator.remedies.samples import Invalid, Missing, Sample, Value

STRUCTURED: Final = Metric.STRUCTURED_OUTPUTS
ASKED_FOR: Final[tuple[str, ...]] = (*GAUGES, *COUNTERS, *HISTOGRAMS, STRUCTURED, Metric.ROUTE_REQUESTS)
"""The families to ask an engine for."""
MAX_STRUCTURED: Final = 4096
"""Most series of structured outputs that are read; routes, precisions and outcomes make far fewer."""

MAX_LINES: Final = 5000
"""Most lines that are parsed; an engine with 32 routes and every kind of answer sends 1100."""

_NOT_SENT: Final = Missing("the engine did not send it")
_QUEUE_FULL: Final = {"reason": "queue_full"}
_TYPES: Final[dict[str, str]] = {
    **dict.fromkeys(GAUGES, "gauge"),
    **dict.fromkeys((*COUNTERS, STRUCTURED, Metric.ROUTE_REQUESTS), "counter"),
    **dict.fromkeys(HISTOGRAMS, "histogram"),
}
_AT_LEAST_ONE: Final = (Metric.CAP, Metric.CAPACITY, Metric.MAX_MODEL_LEN)
_MANY_SERIES: Final = (Metric.REFUSED, Metric.REQUEST_SUCCESS)

_LINE: Final = re.compile(
    rf"[ \t]*(?:#[ \t]+TYPE[ \t]+)?(?:{'|'.join(map(re.escape, ASKED_FOR))})(?:_bucket)?(?=[ \t{{])"
)

_Series = dict[str, list[tuple[Mapping[str, str], float]]]


def parse_metrics(text: str) -> Readings | ScrapeFailed:
    """One scrape. `ScrapeFailed` when it is not the text format at all."""
    lines = [line for line in text.split("\n") if _LINE.match(line)]
    if not lines and text.strip():
        return ScrapeFailed("the reply is not in the text format of metrics, or has none that were asked for")
    if len(lines) > MAX_LINES:
        return ScrapeFailed(f"the reply has {len(lines)} lines of metrics, and at most {MAX_LINES} are read")
    try:
        series, wrong = _read("\n".join(lines))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        return ScrapeFailed(f"the reply is not in the text format of metrics ({type(error).__name__})")
    return Readings(
        gauges={metric: _gauge(metric, series, wrong) for metric in GAUGES},
        counters={metric: _counter(metric, series, wrong) for metric in COUNTERS},
        histograms={metric: _histogram(metric, series, wrong) for metric in HISTOGRAMS},
        structured=_structured(series, wrong),
        begun=_begun(series, wrong),
    )


def _read(text: str) -> tuple[_Series, dict[str, str]]:
    """The samples by series name, and the families that have another type than they should."""
    series: _Series = {}
    wrong: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            want = _TYPES.get(sample.name) or _TYPES.get(family.name)
            if want is not None:
                series.setdefault(sample.name, []).append((sample.labels, sample.value))
                if family.type != want:
                    wrong[sample.name] = f"it was sent as {family.type}, not as {want}"
    return series, wrong


def _gauge(metric: Metric, series: _Series, wrong: Mapping[str, str]) -> Sample:
    found = _found(metric, series, wrong)
    if not isinstance(found, list):
        return found
    if len(found) > 1:
        return Invalid(f"{len(found)} series of it were sent")
    value = found[0][1]
    if metric in _AT_LEAST_ONE and value == 0:
        return Invalid("it is 0, which is out of range")
    return _problem(value, whole=metric is not Metric.KV_CACHE_USAGE, most=_most(metric)) or Value(float(value))


def _counter(metric: Metric, series: _Series, wrong: Mapping[str, str]) -> Sample:
    found = _found(metric, series, wrong)
    if not isinstance(found, list):
        return found
    if metric not in _MANY_SERIES and len(found) > 1:
        return Invalid(f"{len(found)} series of it were sent")
    if metric is Metric.REFUSED:
        found = [(labels, value) for labels, value in found if _QUEUE_FULL.items() <= labels.items()]
    problem = _repeated(found) or next(filter(None, (_problem(value) for _, value in found)), None)
    return problem or Value(float(sum(value for _, value in found)))


def _histogram(metric: Metric, series: _Series, wrong: Mapping[str, str]) -> Histogram:
    found = _found(f"{metric}_bucket", series, wrong)
    if not isinstance(found, list):
        return found
    problem = _repeated(found) or next(filter(None, (_problem(value) for _, value in found)), None)
    if problem is not None:
        return problem
    try:
        pairs = sorted((float(labels["le"]), float(value)) for labels, value in found)
    except (KeyError, ValueError):
        return Invalid("a bucket has no bound")
    bounds, counts = tuple(bound for bound, _ in pairs), tuple(count for _, count in pairs)
    if bounds[-1] != math.inf or len(set(bounds)) != len(bounds) or any(map(math.isnan, bounds)):
        return Invalid("its buckets are not those of one histogram")
    if list(counts) != sorted(counts):
        return Invalid("its buckets do not grow")
    return Buckets(bounds, counts)


def _structured(series: _Series, wrong: Mapping[str, str]) -> Structured:
    found = _found(STRUCTURED, series, wrong)
    if not isinstance(found, list):
        return found
    if len(found) > MAX_STRUCTURED:
        return Invalid(f"{len(found)} series of it were sent")
    counts: dict[Verdicts, float] = {}
    for labels, value in found:
        names = [labels.get(name) for name in ("route", "precision", "constrained", "outcome")]
        problem = _problem(value)
        if problem is not None:
            return problem
        if None in names or names[2] not in ("true", "false"):
            return Invalid("one of its series lacks a label")
        verdicts = Verdicts(str(names[0]), str(names[1]), names[2] == "true", str(names[3]))
        if verdicts in counts:
            return Invalid("one of its series was sent twice")
        counts[verdicts] = float(value)
    return counts


def _begun(series: _Series, wrong: Mapping[str, str]) -> Begun:
    found = _found(Metric.ROUTE_REQUESTS, series, wrong)
    if isinstance(found, Missing):
        return {}
    if isinstance(found, Invalid):
        return found
    problem = _repeated(found) or next(filter(None, (_problem(value) for _, value in found)), None)
    if problem is not None or len(found) > MAX_STRUCTURED:
        return problem or Invalid(f"{len(found)} series of it were sent")
    return {(labels.get("route", ""), labels.get("precision", "")): float(value) for labels, value in found}


def _found(
    name: str, series: _Series, wrong: Mapping[str, str]
) -> list[tuple[Mapping[str, str], float]] | Missing | Invalid:
    if name in wrong:
        return Invalid(wrong[name])
    return series.get(name) or _NOT_SENT


def _repeated(found: Sequence[tuple[Mapping[str, str], float]]) -> Invalid | None:
    distinct = {tuple(sorted(labels.items())) for labels, _ in found}
    return Invalid("one of its series was sent twice") if len(distinct) != len(found) else None


def _problem(value: float, *, whole: bool = True, most: float = math.inf) -> Invalid | None:
    if not math.isfinite(value):
        return Invalid(f"it is {value}")
    if value < 0 or value > most:
        return Invalid(f"it is {value:g}, which is out of range")
    return Invalid(f"it is {value:g}, not a whole number") if whole and value != int(value) else None


def _most(metric: Metric) -> float:
    return 1.0 if metric is Metric.KV_CACHE_USAGE else math.inf

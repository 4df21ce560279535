"""Changes and holds with their numbers and sentences, the same for log, Event, status and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.conditions import bounded
from pagefleet_operator.api.status import Decision, Remedy
from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Absent, Invalid, Missing, Sample, Stale, Value, explain

MAX_MESSAGE: Final = 1024
NAMES: Final[Mapping[Metric, str]] = {
    Metric.REQUESTS_RUNNING: "running",
    Metric.REQUESTS_WAITING: "waiting",
    Metric.REQUESTS_SWAPPED: "swapped",
    Metric.KV_CACHE_USAGE: "kvUsage",
    Metric.CAP: "cap",
    Metric.CAPACITY: "capacity",
    Metric.MAX_MODEL_LEN: "maxModelLen",
    Metric.PREEMPTIONS: "preemptions",
    Metric.SWAPS: "swaps",
    Metric.RECOMPUTES: "recomputes",
    Metric.REFUSED: "refused",
    Metric.TIME_TO_FIRST_TOKEN: "timeToFirstToken",
    Metric.INTER_TOKEN_LATENCY: "interTokenLatency",
}
"""Names of measurements in decisions."""

_HOLD_REASONS: Final[Mapping[type, HoldReason]] = {
    Missing: HoldReason.METRICS_MISSING,
    Stale: HoldReason.METRICS_STALE,
    Invalid: HoldReason.METRICS_INVALID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A decision before it is known whether it is only advice."""

    remedy: Remedy
    subject: str | None
    before: int
    after: int
    reason: RemedyReason
    message: str
    measurements: Mapping[str, str] = field(default_factory=dict)

    def decided(self, view: FleetView, *, advisory: bool) -> Decision:
        """As status keeps it."""
        fields = {
            "time": view.time,
            "remedy": self.remedy,
            "subject": self.subject,
            "from": str(self.before),
            "to": str(self.after),
            "reason": self.reason.value,
            "message": bounded(self.message, MAX_MESSAGE),
            "advisory": advisory,
            "measurements": dict(self.measurements),
        }
        return Decision.model_validate(fields)


def measured(samples: Mapping[Metric, Sample]) -> dict[str, str]:
    """The known ones as text."""
    return {NAMES[metric]: figure(sample.value) for metric, sample in samples.items() if isinstance(sample, Value)}


def figure(value: float) -> str:
    """A number as people write it: at most three decimals."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def count(number: float, noun: str) -> str:
    """`1 request`, `3 requests`."""
    return f"{number:.0f} {noun}" + ("" if round(number) == 1 else "s")


def unknown(remedy: Remedy, pod: str, metric: Metric, sample: Absent) -> Hold:
    """A hold because of one sample."""
    message = f"nothing is done about {pod}: its {metric} {explain(sample)}"
    return Hold(remedy=remedy, reason=_HOLD_REASONS[type(sample)], message=message, subject=pod)


def first_absent(samples: Iterable[tuple[Metric, Sample]]) -> tuple[Metric, Absent] | None:
    """The first one that is not a value."""
    return next(((metric, sample) for metric, sample in samples if not isinstance(sample, Value)), None)

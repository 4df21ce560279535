"""What is known of one pod over the last minutes: looks at its engine, restarts of it told apart, gaps seen.

A window is a value: `looked` returns the next one. Counters are kept as what they gained between two looks, so that an
engine that starts again at 0 neither gains a negative number nor hides what it did since. A window begins anew when the
engine does, and after a gap that is longer than a sample may be old: half a window is never taken for a whole one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.gains import NO_GAINS, Gains, gains_between, has_restarted, merge_buckets, quantile
from pagefleet_operator.remedies.readings import Histogram, Readings, ScrapeFailed, Structured
from pagefleet_operator.remedies.samples import NOTHING_YET, Invalid, Missing, Sample, Stale, Value, number
from pagefleet_operator.remedies.settings import LoopSettings

_Fold = Callable[[Sequence[float]], float]


class EngineStart(NamedTuple):
    """Which start of which engine: the pod's UID and how often its container was restarted."""

    uid: str
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One answered scrape."""

    at_s: float
    readings: Readings
    gains: Gains  # since the look before


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWindow:
    """The last looks at one engine, oldest first. `now` is monotonic everywhere."""

    start: EngineStart
    settings: LoopSettings
    looks: tuple[Look, ...] = ()
    failed: ScrapeFailed | None = None  # how the last scrape failed; None: it did not
    failed_s: float | None = None
    fell_s: float | None = None  # when counters fell without another start to explain it
    moved_s: float = 0.0  # the last look at which the engine was idle or had made steps

    @property
    def last(self) -> Look | None:
        """The last answered look."""
        return self.looks[-1] if self.looks else None

    @property
    def interval_s(self) -> float:
        """The time between the last two answered looks; the usual one where there are no two."""
        if len(self.looks) < 2:
            return self.settings.look_every_s
        return self.looks[-1].at_s - self.looks[-2].at_s

    def looked(self, now_s: float, scraped: Readings | ScrapeFailed, start: EngineStart) -> PodWindow:
        """The window after one more scrape. A scrape from the past changes nothing."""
        last = self.last
        if last is not None and now_s <= last.at_s:
            return self
        if isinstance(scraped, ScrapeFailed):
            return replace(self, failed=scraped, failed_s=now_s)
        fell = last is not None and has_restarted(last.readings, scraped)
        restarted = fell or (last is not None and start != self.start and not self._was_seen(start, now_s))
        gap = last is None or now_s - last.at_s > self.settings.stale_after_s
        before = None if last is None else last.readings
        gains = NO_GAINS if gap else gains_between(None if restarted else before, scraped)
        begin = now_s - self.settings.window_s - self.settings.stale_after_s
        kept = () if restarted or gap else tuple(look for look in self.looks if look.at_s >= begin)
        return replace(
            self,
            start=start,
            looks=(*kept, Look(at_s=now_s, readings=scraped, gains=gains)),
            failed=None,
            failed_s=None,
            fell_s=(now_s if fell else self.fell_s) if start == self.start else None,
            moved_s=now_s if restarted or gap or _moves(scraped, gains) else self.moved_s,
        )

    def _was_seen(self, start: EngineStart, now_s: float) -> bool:
        """Whether the counters have told of this start already: the pod's status may come later than a scrape."""
        recently = self.fell_s is not None and now_s - self.fell_s <= self.settings.window_s
        return recently and start == self.start._replace(restarts=self.start.restarts + 1)

    def gauge(self, metric: Metric, now_s: float) -> Sample:
        """The last value of a gauge."""
        last = self.last
        if last is None:
            return NOTHING_YET if self.failed is None else Missing(self.failed.why)
        age = now_s - last.at_s
        if age > self.settings.stale_after_s:
            return Stale(age, self.failed.why if self.failed else "it was not looked at since")
        if now_s - self.moved_s > self.settings.stale_after_s:
            return Stale(now_s - self.moved_s, "requests run, but the engine has made no step since")
        return last.readings.gauges.get(metric, NOTHING_YET)

    def new(self, metric: Metric, now_s: float) -> Sample:
        """What a counter gained between the last two looks; missing when this very look failed."""
        last = self.last
        if last is None or self.failed is not None:
            return Missing(self.failed.why if self.failed else NOTHING_YET.why)
        if now_s - last.at_s > self.settings.stale_after_s:
            return Stale(now_s - last.at_s, "it was not looked at since")
        return last.gains.counters.get(metric, NOTHING_YET)

    def gained(self, metric: Metric, since_s: float) -> Sample:
        """What a counter gained in the looks after `since_s`; not a value when one of them has none."""
        total = 0.0
        for look in self.since(since_s):
            sample = look.gains.counters.get(metric, NOTHING_YET)
            if not isinstance(sample, Value):
                if look is self.looks[0]:
                    continue  # the first look of a window has nothing to compare with
                return sample
            total += sample.value
        return Value(total)

    def values(self, metric: Metric, since_s: float) -> tuple[Sample, ...]:
        """A gauge's samples in the looks after `since_s`, oldest first."""
        return tuple(look.readings.gauges.get(metric, NOTHING_YET) for look in self.since(since_s))

    def highest(self, metric: Metric, since_s: float) -> Sample:
        """A gauge's highest value after `since_s`; not a value when one of the samples is none."""
        return _over(self.values(metric, since_s), max)

    def lowest(self, metric: Metric, since_s: float) -> Sample:
        """A gauge's lowest value after `since_s`; not a value when one of the samples is none."""
        return _over(self.values(metric, since_s), min)

    def mean(self, metric: Metric, since_s: float) -> Sample:
        """A gauge's mean after `since_s`; not a value when one of the samples is none."""
        return _over(self.values(metric, since_s), lambda numbers: sum(numbers) / len(numbers))

    def latency(self, metric: Metric, since_s: float) -> Sample:
        """The quantile of a latency over the looks after `since_s`, in seconds.

        Missing with too few observations, but 0 when it is known that there were none: nothing was slow.
        """
        merged = self.observed(metric, since_s)
        if merged is None:
            return Value(0.0)
        if isinstance(merged, Missing | Invalid):
            return merged
        observed = merged.counts[-1]
        if 0 < observed < self.settings.min_observations:
            return Missing(f"{observed:.0f} observations say nothing")
        return Value(quantile(merged, self.settings.latency_quantile))

    def observed(self, metric: Metric, since_s: float) -> Histogram | None:
        """The latencies observed in the looks after `since_s`; None without any look to compare."""
        return merge_buckets([look.gains.histograms.get(metric, NOTHING_YET) for look in self._compared(since_s)])

    def structured(self) -> Structured:
        """Structured outputs since the look before; missing when this very look failed."""
        last = self.last
        if last is None or self.failed is not None:
            return Missing(self.failed.why if self.failed else NOTHING_YET.why)
        return last.gains.structured

    def begun(self, since_s: float) -> Counter[tuple[str, str]]:
        """Prompts by route and precision that began in the looks after `since_s`, as far as they were counted."""
        total: Counter[tuple[str, str]] = Counter()
        for look in self.since(since_s):
            if isinstance(look.gains.begun, Mapping):
                total.update({which: int(number) for which, number in look.gains.begun.items()})
        return total

    def since(self, since_s: float) -> tuple[Look, ...]:
        """The looks after a moment."""
        return tuple(look for look in self.looks if look.at_s > since_s)

    def covered_s(self, now_s: float) -> float:
        """How far back the window reaches without a gap; 0 when the last look is too old."""
        last = self.last
        if last is None or now_s - last.at_s > self.settings.stale_after_s:
            return 0.0
        return now_s - self.looks[0].at_s

    def is_full(self, now_s: float) -> bool:
        """Whether a whole window was looked at without a gap."""
        return self.covered_s(now_s) >= self.settings.window_s

    def _compared(self, since_s: float) -> tuple[Look, ...]:
        return tuple(look for look in self.since(since_s) if look is not self.looks[0])


def open_window(start: EngineStart, settings: LoopSettings) -> PodWindow:
    """A window on an engine that was not looked at yet."""
    return PodWindow(start=start, settings=settings)


def _moves(readings: Readings, gains: Gains) -> bool:
    """Whether the engine is idle or has made steps since the last look; unknown counts as yes."""
    running = number(readings.gauges.get(Metric.REQUESTS_RUNNING, NOTHING_YET))
    steps = number(gains.counters.get(Metric.STEPS, NOTHING_YET))
    return not running or steps is None or steps > 0


def _over(samples: tuple[Sample, ...], fold: _Fold) -> Sample:
    if not samples:
        return NOTHING_YET
    numbers: list[float] = []
    for sample in samples:
        if not isinstance(sample, Value):
            return sample
        numbers.append(sample.value)
    return Value(fold(numbers))

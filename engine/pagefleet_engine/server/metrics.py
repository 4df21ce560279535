"""Prometheus metrics: the engine's figures read at scrape time, and what only the HTTP side can measure.

Names live in `pagefleet_engine.contract.metrics`. The one label of the client's choosing is none: `model_name` is the
served name.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from pagefleet_engine.api import EngineStats
from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.metrics import ALIASES, HELP, LATENCY_BUCKETS_S, MIXED, Metric, Outcome, Refusal
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.limits import Limits

_LABEL = "model_name"

_NOT_NOW = (Refusal.LOADING, Refusal.DRAINING, Refusal.ABORTED, Refusal.ENGINE_STOPPED)
"""Codes of 503."""
_BY_STATUS = {401: Refusal.UNAUTHORISED, 429: Refusal.QUEUE_FULL}

_Own = Counter | Gauge | Histogram


class ServerMetrics:
    """One registry of its own; two servers in one process do not mix."""

    def __init__(self, *, stats: Callable[[], EngineStats | None], limits: Limits) -> None:
        self._registry = CollectorRegistry()
        self._model = ""
        self._refused_early: Counts[Refusal] = Counts()
        """While the model, and so the label, is not known."""
        self._bounds = asdict(limits)
        self._registry.register(_EngineCollector(stats, lambda: self._model))
        self._finished = Counter(
            _family(Metric.REQUEST_SUCCESS), HELP[Metric.REQUEST_SUCCESS], [_LABEL, "finished_reason"], registry=None
        )
        self._refused = Counter(_family(Metric.REFUSED), HELP[Metric.REFUSED], [_LABEL, "reason"], registry=None)
        self._histograms = {
            name: Histogram(name, HELP[name], [_LABEL], buckets=buckets, registry=None)
            for name, buckets in LATENCY_BUCKETS_S.items()
        }
        self._limits = Gauge(Metric.LIMITS, HELP[Metric.LIMITS], [_LABEL, "limit"], registry=None)
        self._by_route = Counter(
            _family(Metric.ROUTE_REQUESTS),
            HELP[Metric.ROUTE_REQUESTS],
            [_LABEL, "route", "precision"],
            registry=None,
        )
        self._structured = Counter(
            _family(Metric.STRUCTURED_OUTPUTS),
            HELP[Metric.STRUCTURED_OUTPUTS],
            [_LABEL, "route", "precision", "constrained", "outcome"],
            registry=None,
        )
        counters = (self._finished, self._refused, self._by_route, self._structured)
        own: list[_Own] = [*counters, self._limits, *self._histograms.values()]
        for collector in own:
            self._registry.register(_Plain(collector))

    def set_model(self, name: str) -> None:
        """Every series exists from now on, at zero: an absent series and a zero are different things to an alert."""
        self._model = name
        for reason in FinishReason:
            self._finished.labels(name, reason)
        for refusal in Refusal:
            self._refused.labels(name, refusal).inc(self._refused_early[refusal])
        self._refused_early.clear()
        for histogram in self._histograms.values():
            histogram.labels(name)
        for limit, bound in self._bounds.items():
            self._limits.labels(name, limit).set(bound)

    def set_routes(self, routes: Iterable[RouteConfig]) -> None:
        """The series of these routes exist from now on, in every precision that a request of theirs can have."""
        for route in routes:
            constrained = _flag(route.structured != "validate")
            for precision in (route.precision, route.control_precision):
                self._by_route.labels(self._model, route.name, precision)
            for kind in (route.precision, route.control_precision, MIXED):
                for outcome in Outcome:
                    self._structured.labels(self._model, route.name, kind, constrained, outcome)

    def count_route(self, route: str, precision: Precision) -> None:
        """A prompt of this route has begun to be answered."""
        self._by_route.labels(self._model, route, precision).inc()

    def count_structured(self, route: str, precision: Precision | None, constrained: bool, outcome: Outcome) -> None:
        """An answer that had a schema has ended; without `precision` it belongs to none of them."""
        self._structured.labels(self._model, route, precision or MIXED, _flag(constrained), outcome).inc()

    def count_finished(self, reason: FinishReason) -> None:
        self._finished.labels(self._model, reason).inc()

    def count_refused(self, status: int, code: str | None) -> None:
        """A request that was answered with this error status and the code of its error."""
        reason = _refusal(status, code)
        if reason is not None and self._model:
            self._refused.labels(self._model, reason).inc()
        elif reason is not None:
            self._refused_early[reason] += 1

    def observe(self, metric: Metric, seconds: float) -> None:
        self._histograms[metric].labels(self._model).observe(seconds)

    def render(self, names: Collection[str] = ()) -> bytes:
        """The exposition text; `names` keeps only those families or series."""
        if not names:
            return generate_latest(self._registry)
        return generate_latest(_Subset(self._registry, frozenset(names)))


@dataclass(slots=True)
class RequestTimer:
    """Times one engine request. The caller brings the clock."""

    metrics: ServerMetrics
    arrived_at: float
    last_token_at: float | None = None

    def tokens(self, count: int, *, now: float) -> None:
        """`count` tokens came out; several at once share the time since the last ones."""
        if count == 0:
            return
        if self.last_token_at is None:
            self.metrics.observe(Metric.TIME_TO_FIRST_TOKEN, now - self.arrived_at)
            count -= 1
        for _ in range(count):
            self.metrics.observe(Metric.INTER_TOKEN_LATENCY, (now - (self.last_token_at or now)) / count)
        self.last_token_at = now

    def finished(self, reason: FinishReason, *, now: float) -> None:
        self.metrics.count_finished(reason)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.metrics.observe(Metric.E2E_LATENCY, now - self.arrived_at)


class _EngineCollector(Collector):
    """Reads the engine's own figures once per scrape, so that they belong together."""

    def __init__(self, stats: Callable[[], EngineStats | None], model: Callable[[], str]) -> None:
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Family]:
        stats = self._stats()
        if stats is None:
            return
        model = self._model()
        for name, value in _gauges(stats).items():
            for alias in (name, *_aliases_of(name)):
                yield _with_sample(GaugeMetricFamily(alias, HELP[name], labels=[_LABEL]), [model], value)
        for name, count in _counters(stats).items():
            for alias in (name, *_aliases_of(name)):
                yield _with_sample(CounterMetricFamily(_family(alias), HELP[name], labels=[_LABEL]), [model], count)
        yield _by_label(Metric.FRAMES, "state", stats.frames, model)
        by_precision = {str(precision): stats.sealed_frames.get(precision, 0) for precision in Precision}
        yield _by_label(Metric.SEALED_FRAMES, "precision", by_precision, model)


def _gauges(stats: EngineStats) -> dict[Metric, float]:
    return {
        Metric.REQUESTS_RUNNING: stats.running,
        Metric.REQUESTS_WAITING: stats.waiting,
        Metric.REQUESTS_SWAPPED: stats.swapped,
        Metric.KV_CACHE_USAGE: stats.kv_usage,
        Metric.CPU_CACHE_USAGE: stats.cpu_kv_usage,
        Metric.CAP: stats.cap,
        Metric.CAPACITY: stats.capacity,
        Metric.MAX_MODEL_LEN: stats.max_model_len,
    }


def _counters(stats: EngineStats) -> dict[Metric, int]:
    return {
        Metric.PREEMPTIONS: stats.preemptions_total,
        Metric.PROMPT_TOKENS: stats.prompt_tokens_total,
        Metric.GENERATION_TOKENS: stats.generation_tokens_total,
        Metric.STEPS: stats.step_counter,
        Metric.SWAPS: stats.swaps_total,
        Metric.RESUMES: stats.resumes_total,
        Metric.RECOMPUTES: stats.recomputes_total,
        Metric.EVICTED_FRAMES: stats.evicted_frames_total,
        Metric.DEMOTED_FRAMES: stats.demoted_frames_total,
        Metric.PREFIX_QUERIES: stats.prefix_query_tokens_total,
        Metric.PREFIX_HITS: stats.prefix_hit_tokens_total,
        Metric.PREFIX_HOST_HITS: stats.prefix_host_hit_tokens_total,
    }


def _with_sample(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float) -> Family:
    family.add_metric(labels, value)
    return family


def _by_label(name: Metric, label: str, values: Mapping[str, int], model: str) -> Family:
    family = GaugeMetricFamily(name, HELP[name], labels=[_LABEL, label])
    for key, value in values.items():
        family.add_metric([model, key], value)
    return family


class _Plain(Collector):
    """A collector's families without their `_created` series, and again under the names of earlier vLLM versions."""

    def __init__(self, collector: _Own) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Family]:
        for family in self._collector.collect():
            for name in (family.name, *_aliases_of(family.name)):
                copy = Family(name, family.documentation, family.type)
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        copy.add_sample(name + sample.name.removeprefix(family.name), sample.labels, sample.value)
                yield copy


class _Subset(CollectorRegistry):
    """The families of another registry that somebody asked for by family or series name."""

    def __init__(self, whole: CollectorRegistry, names: frozenset[str]) -> None:
        super().__init__()
        self._whole = whole
        self._wanted = names

    def collect(self) -> Iterator[Family]:
        for family in self._whole.collect():
            if family.name in self._wanted or any(sample.name in self._wanted for sample in family.samples):
                yield family


def _refusal(status: int, code: str | None) -> Refusal | None:
    """None for faults of the engine."""
    if status >= 500:
        return Refusal(code) if code in _NOT_NOW else None
    return _BY_STATUS.get(status, Refusal.INVALID)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _family(name: str) -> str:
    return name.removesuffix("_total")


def _aliases_of(name: str) -> list[str]:
    return [alias for alias, target in ALIASES.items() if target == name]

"""A small, deterministic fleet for simulated time: pods with a KV pool, a queue, swapping, and arrivals of requests.

One tick is one second. A pod admits requests up to its cap, gives each running one the same share of its tokens, swaps
the newest out when the pool is full, brings swapped ones back first, and refuses what its queue cannot hold. It counts
as an engine does. No wall clock, no threads: the seed is an argument, and so is everything else.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from pagefleet_engine.contract.metrics import LATENCY_BUCKETS_S, Metric
from pagefleet_operator.api.engine_spec import MaxNumSeqs
from pagefleet_operator.api.remedy_spec import AutoscalingSpec, TuningSpec
from pagefleet_operator.control.service import reported
from pagefleet_operator.control.setter import Setter
from pagefleet_operator.control.targets import Target
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod, Rules, StartingPod
from pagefleet_operator.remedies.memory import Memory
from pagefleet_operator.remedies.readings import COUNTERS, HISTOGRAMS, Buckets, Readings, ScrapeFailed
from pagefleet_operator.remedies.samples import Value
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import EngineStart, open_window
from tests.operator.remedies.simulated_engines import SimulatedEngines, run_now

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Request:
    arrived_s: float
    prompt: int
    answer: int
    done: float = 0.0
    first_token_s: float | None = None

    @property
    def tokens(self):
        return self.prompt + self.done


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What a pod can do."""

    pool_tokens: int = 16_000
    tokens_per_s: float = 400.0  # of one pod, however many requests share them
    most_per_request: float = 40.0
    queue: int = 200
    load_s: float = 60.0


@dataclass(slots=True)
class Engine:
    """One pod's engine."""

    name: str
    hardware: Hardware
    cap: int
    capacity: int
    created_s: float
    max_model_len: int = 4096
    restarts: int = 0
    generation: int = 1
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    swapped: list[Request] = field(default_factory=list)
    draining: bool = False
    counters: dict[Metric, float] = field(default_factory=dict)
    counts: dict[Metric, list[float]] = field(default_factory=dict)

    def __post_init__(self):
        self.reset()

    def reset(self):
        """As after a start: the requests are lost, the counters begin at 0."""
        self.running, self.waiting, self.swapped = [], [], []
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.counts = {metric: [0.0] * (len(LATENCY_BUCKETS_S[metric]) + 1) for metric in HISTOGRAMS}

    def restart(self, cap):
        self.reset()
        self.restarts += 1
        self.generation, self.cap = 1, cap

    def change(self, *, cap=None, max_model_len=None):
        """By whoever asks its control API."""
        self.generation += 1
        self.cap = cap or self.cap
        self.max_model_len = max_model_len or self.max_model_len

    @property
    def usage(self):
        return sum(request.tokens for request in self.running) / self.hardware.pool_tokens

    @property
    def in_flight(self):
        return len(self.running) + len(self.waiting) + len(self.swapped)

    def take(self, request):
        if len(self.waiting) >= self.hardware.queue:
            self.counters[Metric.REFUSED] += 1
        else:
            self.waiting.append(request)

    def tick(self, now_s):
        """One second of work."""
        self.counters[Metric.STEPS] += 10
        self._admit(now_s)
        if not self.running:
            return
        rate = min(self.hardware.most_per_request, self.hardware.tokens_per_s / len(self.running))
        for request in self.running:
            if request.first_token_s is None:
                request.first_token_s = now_s
                self.observe(Metric.TIME_TO_FIRST_TOKEN, now_s - request.arrived_s + 0.1, 1)
            request.done += rate
            self.observe(Metric.INTER_TOKEN_LATENCY, 1 / rate, rate)
        finished = [request for request in self.running if request.done >= request.answer]
        self.counters[Metric.REQUEST_SUCCESS] += len(finished)
        self.running = [request for request in self.running if request.done < request.answer]
        while self.usage > 1 and len(self.running) > 1:
            self.swapped.append(self.running.pop())
            self.counters[Metric.SWAPS] += 1
            self.counters[Metric.PREEMPTIONS] += 1

    def _admit(self, now_s):
        while len(self.running) < self.cap and (self.swapped or self.waiting):
            queue = self.swapped or self.waiting
            # as much room as the next tick needs, so that nobody is swapped in and out in turn
            if self.running and self.usage + queue[0].tokens / self.hardware.pool_tokens > 0.98:
                return
            self.running.append(queue.pop(0))

    def observe(self, metric, seconds, number):
        self.counts[metric][bisect.bisect_left(LATENCY_BUCKETS_S[metric], seconds)] += number

    def readings(self):
        gauges = {
            Metric.REQUESTS_RUNNING: len(self.running),
            Metric.REQUESTS_WAITING: len(self.waiting),
            Metric.REQUESTS_SWAPPED: len(self.swapped),
            Metric.KV_CACHE_USAGE: min(1.0, self.usage),
            Metric.CAP: self.cap,
            Metric.CAPACITY: self.capacity,
            Metric.MAX_MODEL_LEN: self.max_model_len,
        }
        histograms = {}
        for metric, counts in self.counts.items():
            total, cumulative = 0.0, []
            for number in counts:
                total += number
                cumulative.append(total)
            histograms[metric] = Buckets((*LATENCY_BUCKETS_S[metric], float("inf")), tuple(cumulative))
        return Readings(
            gauges={metric: Value(float(value)) for metric, value in gauges.items()},
            counters={metric: Value(value) for metric, value in self.counters.items()},
            histograms=histograms,
        )


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests per second over time, and how large they are."""

    rate: Callable[[float], float]
    prompt: tuple[int, int] = (200, 400)
    answer: tuple[int, int] = (100, 300)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A decision, with the simulated time."""

    at_s: float
    decision: object


Scrape = Callable[[Engine, float], "Readings | ScrapeFailed"]


class Simulation:
    """The fleet, its clients, and the control loop on top of it."""

    def __init__(
        self,
        *,
        load,
        cap=None,
        tuning=None,
        autoscaling=None,
        hardware=None,
        settings=None,
        seed=0,
        max_model_len=4096,
        scrape=lambda engine, now_s: engine.readings(),
        wall=lambda now_s: EPOCH + timedelta(seconds=now_s),
    ):
        self.rules = Rules(
            cap=cap or MaxNumSeqs(min=4, max=32),
            tuning=tuning or TuningSpec(mode="Auto"),
            autoscaling=autoscaling or AutoscalingSpec(min_replicas=1, max_replicas=4),
            max_model_len=max_model_len,
        )
        self.load, self.hardware = load, hardware or Hardware()
        self.settings = settings or LoopSettings()
        self.scrape, self.wall = scrape, wall
        self.random = random.Random(seed)
        self.now_s = 1000.0
        self.made = 0
        self.replicas = self.rules.autoscaling.min_replicas
        self.engines = []
        self.windows = {}
        self.memory = Memory()
        self.moments = []
        self.caps_in_status = {}  # pod -> the cap that it reported last, and its restarts then
        self.start_setter()
        self.outlook = None
        self.start_cap = self.rules.cap.initial_cap
        self._keep_replicas()
        for engine in self.engines:
            engine.created_s = self.now_s - self.hardware.load_s
        self._debt = 0.0

    def run(self, seconds, check=None):
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += 1.0
            self._arrive()
            for engine in self.engines:
                if self._is_loaded(engine):
                    engine.tick(self.now_s)
            if self.now_s % self.settings.look_every_s == 0:
                self._look()
                if check is not None:
                    check(self)
        return self

    def start_setter(self):
        """A new process: nothing is known of any engine's configuration."""
        engines = SimulatedEngines(lambda uid: next((each for each in self.engines if each.name == uid), None))
        self.setter = Setter(engines=engines, metrics=OperatorMetrics(CollectorRegistry()))

    def reasons(self):
        """The reasons of the decisions so far, each run of equal ones once."""
        found = []
        for moment in self.moments:
            if not found or found[-1] != moment.decision.reason:
                found.append(moment.decision.reason)
        return found

    def ready(self):
        return [engine for engine in self.engines if self._is_loaded(engine) and not engine.draining]

    def view(self):
        starting = [engine for engine in self.engines if not self._is_loaded(engine)]
        return FleetView(
            now_s=self.now_s,
            time=self.wall(self.now_s),
            rules=self.rules,
            replicas=self.replicas,
            ready=tuple(ReadyPod(name=engine.name, window=self.windows[engine.name]) for engine in self.ready()),
            starting=tuple(StartingPod(name=each.name, age_s=self.now_s - each.created_s) for each in starting),
            draining=tuple(engine.name for engine in self.engines if engine.draining),
            settings=self.settings,
        )

    def _is_loaded(self, engine):
        return self.now_s - engine.created_s >= self.hardware.load_s

    def _arrive(self):
        self._debt += self.random.expovariate(1.0) * self.load.rate(self.now_s)
        ready = self.ready()
        while self._debt >= 1:
            self._debt -= 1
            if ready:
                request = Request(
                    self.now_s, self.random.randint(*self.load.prompt), self.random.randint(*self.load.answer)
                )
                min(ready, key=lambda engine: (engine.in_flight, engine.name)).take(request)

    def _look(self):
        for engine in self.ready():
            start = EngineStart(engine.name, engine.restarts)
            window = self.windows.get(engine.name) or open_window(start, self.settings)
            self.windows[engine.name] = window = window.looked(self.now_s, self.scrape(engine, self.now_s), start)
            shown = reported(window, self.now_s).cap
            if shown is not None:
                self.caps_in_status[engine.name] = shown, engine.restarts
        self.outlook = look(self.view(), self.memory)
        self.memory = self.outlook.memory
        self.moments += [Moment(at_s=self.now_s - 1000.0, decision=decision) for decision in self.outlook.decisions]
        self._apply()

    def _apply(self):
        for engine in self.ready():
            self._set(engine)
        self.start_cap = self.outlook.start_cap or self.start_cap
        self.replicas = self.outlook.replicas
        self._keep_replicas()

    def _set(self, engine):
        window = self.windows[engine.name]
        target = Target(cap=self.outlook.caps.get(engine.name), max_model_len=self.outlook.max_model_len)
        pod = EnginePod(name=engine.name, uid=engine.name, ip="10.0.0.1")
        start = EngineStart(engine.name, engine.restarts)
        trouble = run_now(self.setter.bring(pod, start, target, reported(window, self.now_s), self.now_s))
        assert trouble is None, trouble

    def _keep_replicas(self):
        self.engines = [engine for engine in self.engines if not engine.draining or engine.in_flight]
        staying = [engine for engine in self.engines if not engine.draining]
        victims = sorted(staying, key=lambda engine: (engine.in_flight, -engine.created_s))
        for engine in victims[: max(0, len(staying) - self.replicas)]:
            engine.draining = True
        for _ in range(self.replicas - len(staying)):
            self.made += 1
            self.engines.append(
                Engine(
                    name=f"pod-{self.made}",
                    hardware=self.hardware,
                    cap=self.start_cap,
                    capacity=self.rules.cap.max,
                    created_s=self.now_s,
                )
            )


def noisy(rate, share, seed):
    """`rate` with noise of +/-`share` that changes every 10 s."""
    generator = random.Random(seed)
    factors = [1 + generator.uniform(-share, share) for _ in range(4096)]
    return lambda now_s: (rate(now_s) if callable(rate) else rate) * factors[int(now_s / 10) % len(factors)]

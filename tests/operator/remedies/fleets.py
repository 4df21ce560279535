"""Builders for table tests of the remedies: pods whose windows show what a case says, and views of them."""

from __future__ import annotations

import bisect
from datetime import UTC, datetime

from pagefleet_engine.contract.metrics import LATENCY_BUCKETS_S, Metric
from pagefleet_operator.api.engine_spec import MaxNumSeqs
from pagefleet_operator.api.remedy_spec import AutoscalingSpec, TuningSpec
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod, Rules
from pagefleet_operator.remedies.memory import CapMemory, Memory, ScaleMemory, TuneMemory
from pagefleet_operator.remedies.readings import COUNTERS, HISTOGRAMS, Buckets, Readings
from pagefleet_operator.remedies.samples import Value
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import EngineStart, open_window

NOW = 10_000.0
TIME = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = LoopSettings()
GAUGES = {
    "running": Metric.REQUESTS_RUNNING,
    "waiting": Metric.REQUESTS_WAITING,
    "swapped": Metric.REQUESTS_SWAPPED,
    "kv": Metric.KV_CACHE_USAGE,
    "cap": Metric.CAP,
    "capacity": Metric.CAPACITY,
    "length": Metric.MAX_MODEL_LEN,
}
DEFAULTS = {"running": 4, "waiting": 0, "swapped": 0, "kv": 0.2, "cap": 32, "capacity": 32, "length": 4096}
LATENCIES = {"first_token_s": Metric.TIME_TO_FIRST_TOKEN, "inter_token_s": Metric.INTER_TOKEN_LATENCY}


def buckets(metric, seconds, number):
    """`number` observations of `seconds`."""
    bounds = (*LATENCY_BUCKETS_S[metric], float("inf"))
    index = len(bounds) if seconds is None else bisect.bisect_left(bounds, seconds)
    return Buckets(bounds, tuple(float(number) if place >= index else 0.0 for place in range(len(bounds))))


def readings(*, counters=None, observed=0, steps=0, first_token_s=None, inter_token_s=None, **gauges):
    """One scrape. A gauge may be a number or a sample."""
    values = {GAUGES[name]: value for name, value in (DEFAULTS | gauges).items()}
    latencies = {Metric.TIME_TO_FIRST_TOKEN: first_token_s, Metric.INTER_TOKEN_LATENCY: inter_token_s}
    counts = dict.fromkeys(COUNTERS, 0.0) | {Metric.STEPS: float(steps)} | (counters or {})
    return Readings(
        gauges={metric: _sample(value) for metric, value in values.items()},
        counters={metric: _sample(value) for metric, value in counts.items()},
        histograms={metric: buckets(metric, latencies[metric], observed) for metric in HISTOGRAMS},
    )


def pod(name="a", *, now=NOW, looks=15, new=None, before=None, restarts=0, last=None, **gauges):
    """A pod that looked the same for `looks` looks, the last one now.

    `new`: what counters gained in the last look; `before`: what they gained at each of the looks before.
    `last`: gauges that differ in the last look.
    """
    start = EngineStart(name, restarts)
    window = open_window(start, SETTINGS)
    for index in range(looks):
        counters = {metric: index * value for metric, value in (before or {}).items()}
        shown = gauges
        if index == looks - 1:
            shown = gauges | (last or {})
            for metric, value in (new or {}).items():
                counters[metric] = counters.get(metric, 0) + value if isinstance(value, int | float) else value
        scrape = readings(counters=counters, observed=10 * index, steps=100 * index + 1, **shown)
        window = window.looked(now - 5.0 * (looks - 1 - index), scrape, start)
    return ReadyPod(name=name, window=window)


def known(*pods, caps, **fields):
    """A memory of caps that have been the same for long; `fields` of every one of them."""
    made = {
        each.name: CapMemory(start=each.window.start, desired=cap, **({"changed_s": 0.0} | fields))
        for each, cap in zip(pods, caps, strict=True)
    }
    return Memory(
        tune=TuneMemory(caps=made, swapped_s=0.0, queued_s=0.0), scale=ScaleMemory(since_s=0.0, settled_s=0.0)
    )


def view(*pods, replicas=None, cap=None, tuning="Auto", length=None, scaling=None, targets=None, now=NOW, **fields):
    """A view of ready pods. `scaling`: fields of `autoscaling`; None: without."""
    asked = None
    if scaling is not None or targets is not None:
        asked = AutoscalingSpec.model_validate({"maxReplicas": 4, "targets": targets or {}} | (scaling or {}))
    rules = Rules(
        cap=cap or MaxNumSeqs(min=4, max=32),
        tuning=TuningSpec.model_validate({"mode": tuning, "maxModelLen": length}),
        autoscaling=asked,
        max_model_len=fields.pop("max_model_len", 4096),
    )
    count = len(pods) if replicas is None else replicas
    return FleetView(now_s=now, time=TIME, rules=rules, replicas=count, ready=pods, settings=SETTINGS, **fields)


def _sample(value):
    return Value(float(value)) if isinstance(value, int | float) else value

"""Whether fewer replicas would still hold the targets: the N-1 check, before anybody is sent away.

The load of all N is put on M = N - 1 (and on fewer, while that holds). Every bound keeps the tolerance away:

    KV use     sum / M            <= target x 0.9
    running    sum                <= the M lowest caps together x 0.9
    queue      sum                <= target x M x 0.9
    latency    quantile x N / M   <= target x 0.9
    refused, swapped, preempted   none

Numbers are the highest of the window. A pod that is not measured counts as full, and more than a few of those hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.demand import Demand, Observed
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.pressure import pressure_since
from pagefleet_operator.remedies.readings import Buckets
from pagefleet_operator.remedies.reasons import HoldReason
from pagefleet_operator.remedies.samples import NOTHING_YET, Absent, Sample, Value, number
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.words import first_absent, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one pod carried at most in the window."""

    running: float
    waiting: float
    kv_usage: float
    cap: float
    pressure: float


def fewest_enough(view: FleetView, demand: Demand, least: int, settings: LoopSettings) -> int | Hold:
    """The fewest replicas, at least `least`, that would do; N when all are needed; a hold when too little is known."""
    loads: list[Load] = []
    missing: list[tuple[str, Metric, Absent]] = []
    for pod in view.ready:
        load = measure_load(pod, view, settings)
        if isinstance(load, Load):
            loads.append(load)
        else:
            missing.append((pod.name, *load))
            loads.append(_full(view))
    if missing and len(view.ready) - len(missing) < settings.fresh_share * len(view.ready):
        return unknown(Remedy.SCALE, *missing[0])
    filling = [pod.name for pod in view.ready if not pod.window.is_full(view.now_s)]
    if filling:
        message = f"{filling[0]} has not been looked at for a whole window of {settings.window_s:.0f} s"
        return Hold(remedy=Remedy.SCALE, reason=HoldReason.WINDOW_FILLING, message=message, subject=filling[0])
    enough = len(view.ready)
    while enough - 1 >= least and would_hold(view, demand, loads, enough - 1, settings):
        enough -= 1
    return enough


def would_hold(view: FleetView, demand: Demand, loads: list[Load], replicas: int, settings: LoopSettings) -> bool:
    """Whether `replicas` pods would hold the targets under the load of all."""
    if replicas < 1:
        return False
    targets, within = view.rules.targets, 1 - settings.tolerance
    caps = sorted(load.cap for load in loads)[:replicas]
    share = len(loads) / replicas
    return (
        demand.refused == 0
        and all(load.pressure == 0 for load in loads)
        and sum(load.kv_usage for load in loads) / replicas <= targets.kv_usage * within
        and sum(load.running for load in loads) <= sum(caps) * within
        and sum(load.waiting for load in loads) <= targets.queue_per_replica * replicas * within
        and _in_time(demand.first_token, targets.first_token_s, share / within)
        and _in_time(demand.inter_token, targets.inter_token_s, share / within)
    )


def measure_load(pod: ReadyPod, view: FleetView, settings: LoopSettings) -> Load | tuple[Metric, Absent]:
    """One pod's load, or the first thing that is not known of it."""
    since, window = view.now_s - settings.window_s, pod.window
    samples = {
        Metric.REQUESTS_RUNNING: window.gauge(Metric.REQUESTS_RUNNING, view.now_s),
        Metric.REQUESTS_WAITING: window.highest(Metric.REQUESTS_WAITING, since),
        Metric.KV_CACHE_USAGE: window.highest(Metric.KV_CACHE_USAGE, since),
        Metric.CAP: window.gauge(Metric.CAP, view.now_s),
        Metric.PREEMPTIONS: pressure_since(window, since),
        Metric.REFUSED: window.gained(Metric.REFUSED, since),
    }
    if absent := first_absent([*samples.items(), *_latencies(view, pod, since)]):
        return absent
    running = window.highest(Metric.REQUESTS_RUNNING, since)
    if not isinstance(running, Value):
        return Metric.REQUESTS_RUNNING, running
    known = {metric: number(sample) or 0.0 for metric, sample in samples.items()}
    return Load(
        running=running.value,
        waiting=known[Metric.REQUESTS_WAITING],
        kv_usage=known[Metric.KV_CACHE_USAGE],
        cap=known[Metric.CAP],
        pressure=known[Metric.PREEMPTIONS],
    )


def _latencies(view: FleetView, pod: ReadyPod, since_s: float) -> Iterator[tuple[Metric, Sample]]:
    targets = view.rules.targets
    for metric, target in (
        (Metric.TIME_TO_FIRST_TOKEN, targets.first_token_s),
        (Metric.INTER_TOKEN_LATENCY, targets.inter_token_s),
    ):
        if target is None:
            continue
        observed = pod.window.observed(metric, since_s)
        if not isinstance(observed, Buckets):
            yield metric, NOTHING_YET if observed is None else observed


def _full(view: FleetView) -> Load:
    cap = float(view.rules.cap.max)
    return Load(running=cap, waiting=0.0, kv_usage=1.0, cap=cap, pressure=0.0)


def _in_time(found: Observed | None, target: float | None, factor: float) -> bool:
    """Few observations count here: they are the load that there is."""
    return target is None or (found is not None and found.seconds * factor <= target)

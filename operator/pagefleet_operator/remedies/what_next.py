"""What would have to change for the next remedy: the sentences that `pagefleet explain` prints below the decisions.

They stand in status, so numbers that move all the time are coarse in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.remedies.adopt import cap_bounds
from pagefleet_operator.remedies.coarse import about, coarse_share
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.demand import measure_demand
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.memory import Memory
from pagefleet_operator.remedies.samples import Sample, Value, explain
from pagefleet_operator.remedies.words import count, figure


def what_next(view: FleetView, memory: Memory) -> list[str]:
    """One sentence per thing that could happen next, and per thing that is held now."""
    if view.paused:
        return ["The service is paused: nothing happens until spec.paused is false."]
    return [*_caps(view, memory), *_replicas(view), *_holds(view, memory)]


def _caps(view: FleetView, memory: Memory) -> Iterator[str]:
    if view.rules.tuning.mode is Mode.OFF:
        yield "Caps stay as they are: tuning.mode is Off."
        return
    for pod in view.ready:
        known = memory.tune.caps.get(pod.name)
        if known is not None:
            yield from _cap(view, pod, known.desired)


def _cap(view: FleetView, pod: ReadyPod, cap: int) -> Iterator[str]:
    low, high = cap_bounds(view, pod)
    settings, target = view.settings, view.rules.targets.inter_token_s
    slow = (
        ""
        if target is None
        else f", or tokens take more than {figure(target * (1 + settings.tolerance))} s while it is full"
    )
    if cap > low:
        yield f"The cap of {pod.name}, {cap}, goes down as soon as a request is swapped out or preempted{slow}."
    else:
        yield f"The cap of {pod.name}, {cap}, is at its minimum."
    if cap >= high:
        yield f"The cap of {pod.name}, {cap}, is at its maximum."
        return
    waiting, running = (_now(view, pod, metric, about) for metric in (Metric.REQUESTS_WAITING, Metric.REQUESTS_RUNNING))
    usage = _now(view, pod, Metric.KV_CACHE_USAGE, lambda share: f"about {coarse_share(share):.0%}")
    yield (
        f"It goes up when requests wait all the time (now {waiting}), {cap} run (now {running}), and the KV pool would "
        f"stay below {settings.kv_room:.0%} (use now {usage})."
    )


def _replicas(view: FleetView) -> Iterator[str]:
    rules, settings = view.rules.autoscaling, view.settings
    if rules is None or rules.mode is Mode.OFF:
        yield f"Replicas stay at {view.replicas}: autoscaling is " + ("not given." if rules is None else "Off.")
        return
    targets, demand = view.rules.targets, measure_demand(view, settings, view.now_s - settings.window_s)
    if view.replicas < rules.max_replicas:
        allowed = targets.queue_per_replica * max(1, len(view.ready)) * (1 + settings.tolerance)
        yield (
            f"A replica is added when more than {figure(allowed)} requests wait on average, refused ones included, "
            f"over {settings.window_s:.0f} s (now {about(demand.queued + demand.refused)}), and no cap can help."
        )
    else:
        yield f"No replica is added: {count(view.replicas, 'replica')} is maxReplicas."
    if view.replicas > rules.min_replicas:
        window_s = rules.behavior.scale_down.stabilization_window_seconds
        most = targets.kv_usage * (1 - settings.tolerance)
        yield (
            f"A replica is removed when {view.replicas - 1} would have held the targets for {window_s} s, "
            f"with KV use below {most:.0%}."
        )
    else:
        yield f"No replica is removed: {count(view.replicas, 'replica')} is minReplicas."


def _holds(view: FleetView, memory: Memory) -> Iterator[str]:
    for hold in look(view, memory).holds:
        yield f"Held ({hold.reason}): {hold.message}."


def _now(view: FleetView, pod: ReadyPod, metric: Metric, say: Callable[[float], str]) -> str:
    sample: Sample = pod.window.gauge(metric, view.now_s)
    return say(sample.value) if isinstance(sample, Value) else f"unknown, since it {explain(sample)}"

"""What clients ask for, against what the targets allow: whether more replicas are needed, and how many."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod
from pagefleet_operator.remedies.gains import merge_buckets, quantile
from pagefleet_operator.remedies.readings import Buckets
from pagefleet_operator.remedies.reasons import RemedyReason
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.words import figure


class Observed(NamedTuple):
    """A quantile of latencies, and of how many it is one. Without any: 0 s of 0."""

    seconds: float
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Of the pods that were measured; those that were not count as idle."""

    queued: float = 0.0  # requests that wait, on average
    refused: float = 0.0  # requests that were answered with 429
    first_token: Observed | None = None  # None: not measured, or no target
    inter_token: Observed | None = None
    num_ready: int = 0
    over_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """More replicas are needed."""

    replicas: int
    reason: RemedyReason
    sentence: str  # the beginning of a message


def measure_demand(view: FleetView, settings: LoopSettings, since_s: float) -> Demand:
    """Over the looks after `since_s`."""
    targets = view.rules.targets
    return Demand(
        queued=_sum(number(pod.window.mean(Metric.REQUESTS_WAITING, since_s)) for pod in view.ready),
        refused=_sum(number(pod.window.gained(Metric.REFUSED, since_s)) for pod in view.ready),
        first_token=_latency(view.ready, Metric.TIME_TO_FIRST_TOKEN, targets.first_token_s, settings, since_s),
        inter_token=_latency(view.ready, Metric.INTER_TOKEN_LATENCY, targets.inter_token_s, settings, since_s),
        num_ready=len(view.ready),
        over_s=view.now_s - since_s,
    )


def find_need(view: FleetView, demand: Demand, settings: LoopSettings) -> Need | None:
    """The first target that is missed by more than the tolerance: queue, refusals, first token, tokens."""
    targets, beyond = view.rules.targets, 1 + settings.tolerance
    allowed = targets.queue_per_replica * demand.num_ready
    wanted = math.ceil((demand.queued + demand.refused) / targets.queue_per_replica)
    over = f"over {demand.over_s:.0f} s"
    if demand.queued > allowed * beyond:
        sentence = f"{demand.queued:.0f} requests waited on average {over} and the target allows {allowed}"
        return Need(replicas=wanted, reason=RemedyReason.QUEUE_ABOVE_TARGET, sentence=sentence)
    if demand.queued + demand.refused > allowed * beyond:
        sentence = f"{demand.refused:.0f} requests were refused {over}, {demand.queued:.0f} waited, {allowed} may"
        return Need(replicas=wanted, reason=RemedyReason.REQUESTS_REFUSED, sentence=sentence)
    share = f"the {settings.latency_quantile:.0%} quantile of the time"
    for observed, target, what, reason in (
        (demand.first_token, targets.first_token_s, "to the first token", RemedyReason.FIRST_TOKEN_TOO_SLOW),
        (demand.inter_token, targets.inter_token_s, "between tokens", RemedyReason.TOKENS_TOO_SLOW),
    ):
        if observed is None or target is None or observed.number < settings.min_observations:
            continue
        if observed.seconds > target * beyond:
            sentence = f"{share} {what} was {figure(observed.seconds)} s {over}, above {figure(target)} s"
            return Need(replicas=view.replicas + 1, reason=reason, sentence=sentence)
    return None


def measurements_of(demand: Demand) -> dict[str, str]:
    """As decisions show them."""
    found = {
        "waiting": demand.queued,
        "refused": demand.refused,
        "ready": float(demand.num_ready),
        "timeToFirstToken": demand.first_token and demand.first_token.seconds,
        "interTokenLatency": demand.inter_token and demand.inter_token.seconds,
    }
    return {name: figure(value) for name, value in found.items() if value is not None}


def _latency(
    pods: Iterable[ReadyPod], metric: Metric, target: float | None, settings: LoopSettings, since_s: float
) -> Observed | None:
    """The quantile over all pods together: a mean of quantiles would be none."""
    if target is None:
        return None
    observed = [pod.window.observed(metric, since_s) for pod in pods]
    merged = merge_buckets([buckets for buckets in observed if isinstance(buckets, Buckets)])
    if not isinstance(merged, Buckets):
        return None
    return Observed(quantile(merged, settings.latency_quantile), merged.counts[-1])


def _sum(values: Iterable[float | None]) -> float:
    return sum(value for value in values if value is not None)

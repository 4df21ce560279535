"""The load of a service as status shows it: sums over its pods, coarse on purpose. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import LoadStatus
from pagefleet_operator.remedies.coarse import coarse as coarse
from pagefleet_operator.remedies.coarse import coarse_share
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.window import PodWindow


def measure(windows: Iterable[PodWindow], now_s: float) -> tuple[LoadStatus | None, str | None]:
    """Requests over all pods and mean KV use, both None when a pod is not measured."""
    windows = tuple(windows)
    sums = [_sum(windows, metric, now_s) for metric in _LOAD]
    usage = _sum(windows, Metric.KV_CACHE_USAGE, now_s)
    if usage is None or None in sums:
        return None, None
    running, waiting, swapped = (coarse(int(total or 0)) for total in sums)
    return LoadStatus(running=running, waiting=waiting, swapped=swapped), f"{coarse_share(usage / len(windows)):.2f}"


_LOAD = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.REQUESTS_SWAPPED)


def _sum(windows: tuple[PodWindow, ...], metric: Metric, now_s: float) -> float | None:
    values = [number(window.gauge(metric, now_s)) for window in windows]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None

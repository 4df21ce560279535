"""The load of a service as status shows it: sums over its pods, coarse on purpose. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.status import LoadStatus
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
    share = round(usage / len(windows) * 20) / 20
    return LoadStatus(running=running, waiting=waiting, swapped=swapped), f"{share:.2f}"


_LOAD = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.REQUESTS_SWAPPED)


def coarse(count: int) -> int:
    """A count as status shows it: exact up to 2, then the next of 5, 10, 20, 50, … so that few changes are written."""
    if count <= 2:
        return count
    magnitude: int = 10 ** (len(str(count)) - 1)
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= count)


def _sum(windows: tuple[PodWindow, ...], metric: Metric, now_s: float) -> float | None:
    values = [number(window.gauge(metric, now_s)) for window in windows]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None

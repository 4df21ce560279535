"""Timing on a device: CUDA events around graph replays; on a CPU (dry run) a host clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch

_WORTH_S = 0.05
_MOST_REPEATS = 100
_WARM_COPIES = 100


def measure_s(run: Callable[[], object], *, device: str, graph: bool = True, repeats: int = 5) -> float:
    """Median seconds of `run`, after a warm-up; as a captured graph where the device is a GPU.

    Runs follow each other without a gap, so that no launch is counted, at least `repeats` times and for some 50 ms.
    """
    run()
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    torch.cuda.synchronize()
    replay: Callable[[], object] = run
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        replay = captured.replay
    (first,) = _event_times_s(replay, 1)
    return statistics.median(_event_times_s(replay, repeats_for(first, least=repeats)))


def repeats_for(first_s: float, *, least: int) -> int:
    """How often something that took `first_s` is run again."""
    return max(least, min(_MOST_REPEATS, int(_WORTH_S / max(first_s, 1e-9))))


def _event_times_s(replay: Callable[[], object], count: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        replay()
        mark.record()
    marks[-1].synchronize()
    return [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(marks)]


def copy_bandwidth(device: str) -> float:
    """Bytes read and written per second by a large copy on the device."""
    size = 2**32 if device != "cpu" else 2**20
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    for _ in range(_WARM_COPIES if device != "cpu" else 0):
        target.copy_(source)  # an idle GPU's clocks are low, and all shares are relative to this figure
    return 2 * size / measure_s(lambda: target.copy_(source), device=device, repeats=9)

"""Timing on a device: CUDA events around graph replays; on a CPU (dry run) a host clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def measure_s(run: Callable[[], object], *, device: str, graph: bool = True, repeats: int = 5) -> float:
    """Median seconds of `run`, after a warm-up; as a captured graph where the device is a GPU."""
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
        replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return float(statistics.median(times))


def copy_bandwidth(device: str) -> float:
    """Bytes read and written per second by a large copy on the device."""
    size = 2**32 if device != "cpu" else 2**20
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * size / measure_s(lambda: target.copy_(source), device=device, repeats=9)

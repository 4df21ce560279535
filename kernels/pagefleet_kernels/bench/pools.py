"""The pool that a process measures with, made when its first case asks: no case, no pool."""

from __future__ import annotations

from functools import cache

import torch

from pagefleet_kernels.bench.decode import Bench, make_bench
from pagefleet_kernels.bench.timing import copy_bandwidth
from pagefleet_kernels.layout import FrameLayout

LLAMA_8B = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)
TINY = FrameLayout(num_layers=1, num_kv_heads=1, head_dim=16, block_size=8)


def pool_bytes(free: int) -> int:
    """96 GiB, or 70 % of the device's free bytes where that is less: weights and results need the rest."""
    return min(96 * 2**30, free * 7 // 10)


def layout_of(device: str) -> FrameLayout:
    """Llama-3-8B's on a GPU, a tiny one in a dry run."""
    return TINY if device == "cpu" else LLAMA_8B


@cache
def bench_of(device: str) -> Bench:
    """The copy bandwidth of the device, as this process measures it, and a pool in what is free after."""
    layout, copy = layout_of(device), copy_bandwidth(device)
    size = 64 * layout.frame_bytes
    if device != "cpu":
        torch.cuda.empty_cache()
        size = pool_bytes(torch.cuda.mem_get_info()[0])
    return make_bench(layout, heads=4 * layout.num_kv_heads, pool_bytes=size, device=device, copy_bytes_per_s=copy)

"""Swap, seal and write: bytes per second of what moves frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.bench.decode import Bench
from pagefleet_kernels.bench.timing import measure_s
from pagefleet_kernels.copy_frames import copy_frames, frames_from_host, frames_to_host
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.seal_frames import seal_open_frames
from pagefleet_kernels.write_open import write_open


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """One measured case."""

    name: str
    gigabytes_per_s: float
    microseconds: float
    share: float | None
    """of what the line names: pinned copy for swap, device copy for copies inside the pool"""


def swap_cases(bench: Bench, num_frames: int) -> list[TransferRow]:
    """Frames to and from pinned host memory, beside one plain pinned copy of the same size."""
    layout, device = bench.layout, bench.device
    host = torch.empty((num_frames, layout.frame_bytes), dtype=torch.uint8, pin_memory=device != "cpu")
    host.zero_()
    block = bench.pool[:num_frames]
    frames = torch.randperm(bench.pool.shape[0])[:num_frames].tolist()
    slots = list(range(num_frames))
    size = num_frames * layout.frame_bytes
    rows = []
    plain_out = measure_s(lambda: host.copy_(block, non_blocking=True), device=device, graph=False)
    plain_in = measure_s(lambda: block.copy_(host, non_blocking=True), device=device, graph=False)
    swap_out = measure_s(lambda: frames_to_host(bench.pool, layout, host, frames, slots), device=device, graph=False)
    swap_in = measure_s(lambda: frames_from_host(bench.pool, layout, host, frames, slots), device=device, graph=False)
    for name, seconds, plain in (
        ("pinned copy, device to host", plain_out, None),
        ("pinned copy, host to device", plain_in, None),
        ("swap out, scattered frames", swap_out, plain_out),
        ("swap in, scattered frames", swap_in, plain_in),
    ):
        rows.append(_row(name, size, seconds, None if plain is None else plain / seconds))
    return rows


def frame_cases(bench: Bench, num_groups: int) -> list[TransferRow]:
    """Sealing all layers of groups in place, writing one layer's tokens, and copying frames."""
    layout, device = bench.layout, bench.device
    rows = []
    for precision in (p for p in Precision if p is not Precision.BF16):
        opens = layout.open_frames_per_group(precision)
        frames = torch.randperm(bench.pool.shape[0])[: num_groups * opens].view(num_groups, opens).int().to(device)
        layers = range(layout.num_layers)
        seconds = measure_s(
            lambda p=precision, f=frames, n=layers: seal_open_frames(bench.pool, layout, n, p, f, impl="triton"),  # type: ignore[misc]
            device=device,
            graph=False,
        )
        read = num_groups * layout.tokens_per_frame(precision) / layout.block_size * layout.payload_bytes
        size = read + num_groups * layout.payload_bytes
        rows.append(
            _row(f"seal {num_groups} groups {precision}", size, seconds, size / seconds / bench.copy_bytes_per_s)
        )
    tokens = torch.arange(num_groups, dtype=torch.int32, device=device)
    keys = torch.randn((num_groups, layout.num_kv_heads, layout.head_dim), device=device).bfloat16()
    seconds = measure_s(
        lambda: write_open(bench.pool, layout, 0, tokens, tokens % 16, keys, keys, impl="triton"), device=device
    )
    rows.append(_row(f"write {num_groups} tokens, one layer", 4 * keys.numel() * 2, seconds, None))
    order = torch.randperm(bench.pool.shape[0])[: 2 * num_groups].int().to(device)
    seconds = measure_s(
        lambda: copy_frames(bench.pool, layout, order[:num_groups], order[num_groups:], impl="triton"), device=device
    )
    size = 2 * num_groups * layout.frame_bytes
    rows.append(_row(f"copy {num_groups} frames", size, seconds, size / seconds / bench.copy_bytes_per_s))
    return rows


def _row(name: str, size: float, seconds: float, share: float | None) -> TransferRow:
    return TransferRow(
        name=name,
        gigabytes_per_s=round(size / seconds / 1e9, 2),
        microseconds=round(seconds * 1e6, 2),
        share=None if share is None else round(share, 3),
    )

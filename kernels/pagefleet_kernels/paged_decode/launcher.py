"""Launches the decode kernels: one grid per precision of the batch, then the merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import DecodeLaunch, decode_launch, num_splits, power_of_two_from
from pagefleet_kernels.layout import Address, FrameLayout, Precision
from pagefleet_kernels.paged_decode import kernel
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable

CODES = {name: code for code, name in enumerate(Precision)}
LOG2_E = math.log2(math.e)


def paged_decode(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    sealed: Sequence[FrameTable],
    open_table: OpenTable,
    scale: float,
    masking: Masking,
    *,
    splits: int | None = None,
    launch: DecodeLaunch | None = None,
    address: Address | None = None,
    native: bool | None = None,
    allocate: Allocate = allocate,
) -> torch.Tensor:
    """Arguments as in the public function. `splits`, `launch` and `address` override the rules, for measurements;
    `native` is off in the interpreter."""
    native = queries.is_cuda if native is None else native
    out = allocate(tuple(queries.shape), queries.dtype, queries.device)
    if not queries.numel():
        return out
    queries = queries.to(torch.bfloat16).contiguous()
    tables = [table for table in sealed if table.frames.shape[1]] or [empty_table(open_table)]
    plans = [
        launch or decode_launch(t.precision, block_size=layout.block_size, head_dim=layout.head_dim) for t in tables
    ]
    counts = [splits or choose_splits(t, p, layout) for t, p in zip(tables, plans, strict=True)]
    direct = counts == [1]
    num_parts = sum(counts) + 1
    rows = queries.shape[0] * queries.shape[1]
    num_results = 1 if direct else rows * num_parts
    parts = allocate((num_results, layout.head_dim), torch.float32, queries.device)
    stats = allocate((num_results, 2), torch.float32, queries.device)
    first_part = 0
    for table, plan, count in zip(tables, plans, counts, strict=True):
        has_open = first_part == 0
        _launch(
            queries, pool, layout, address or layout.address(layer), table, open_table, out, parts, stats, scale,
            masking, plan, count, first_part, num_parts, has_open, direct, native,
        )  # fmt: skip
        first_part += count + int(has_open)
    if not direct:
        kernel.combine_kernel[(rows,)](
            parts,
            stats,
            out,
            num_parts,
            HEAD_DIM=layout.head_dim,
            BLOCK_D=power_of_two_from(layout.head_dim),
            PARTS=power_of_two_from(num_parts),
            NATIVE=native,
            num_warps=4,
        )
    return out


def empty_table(open_table: OpenTable) -> FrameTable:
    """A table without frames: the batch has open frames only."""
    frames = open_table.frames
    return FrameTable(
        precision=Precision.BF16, frames=frames, starts=frames, counts=torch.zeros_like(open_table.lengths)
    )


def choose_splits(table: FrameTable, plan: DecodeLaunch, layout: FrameLayout) -> int:
    """The width of the table bounds the longest sequence, so that a captured graph serves any lengths up to it."""
    device = table.frames.device
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return num_splits(
        num_sequences=table.frames.shape[0],
        num_kv_heads=layout.num_kv_heads,
        num_iterations=-(-table.frames.shape[1] // plan.frames),
        num_slots=multiprocessors * plan.residents,
    )


def _launch(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    address: Address,
    table: FrameTable,
    open_table: OpenTable,
    out: torch.Tensor,
    parts: torch.Tensor,
    stats: torch.Tensor,
    scale: float,
    masking: Masking,
    plan: DecodeLaunch,
    count: int,
    first_part: int,
    num_parts: int,
    has_open: bool,
    direct: bool,
    native: bool,
) -> None:
    group = queries.shape[1] // layout.num_kv_heads
    grid = (layout.num_kv_heads, count + int(has_open and not direct), queries.shape[0])
    kernel.decode_kernel[grid](
        queries, pool, pool.view(torch.bfloat16), pool.view(torch.float32), table.frames, table.starts, table.counts,
        open_table.frames, open_table.starts, open_table.lengths, out, parts, stats,
        scale * LOG2_E, address.tile_base // 128, address.scale_base // 4, table.frames.stride(0),
        open_table.frames.stride(0), count, first_part, num_parts,
        **decode_constants(layout, address, table.precision, group, masking, plan), HAS_OPEN=has_open, DIRECT=direct,
        NATIVE=native, num_warps=plan.num_warps, num_stages=plan.num_stages,
    )  # fmt: skip


def decode_constants(
    layout: FrameLayout, address: Address, precision: Precision, group: int, masking: Masking, plan: DecodeLaunch
) -> dict[str, Any]:
    """The compile-time arguments that follow from shapes."""
    return {
        **tile_constants(layout, address, precision, group, masking),
        "ROWS": max(16, power_of_two_from(group)),
        "FRAMES": plan.frames,
        "STAGES": plan.num_stages,
    }


def tile_constants(
    layout: FrameLayout, address: Address, precision: Precision, group: int, masking: Masking
) -> dict[str, Any]:
    """What both attention kernels are compiled for."""
    form = layout.tile_format(precision)
    return {
        "GROUP": group,
        "KV_HEADS": layout.num_kv_heads,
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": max(16, power_of_two_from(layout.head_dim)),
        "FRAME_BYTES": address.frame_stride,
        "TILE_BYTES": layout.tile_bytes,
        "BLOCK_SIZE": layout.block_size,
        "WIDTH": layout.block_size if precision is Precision.BF16 else 2 * layout.block_size,
        "CODE_ROWS": form.code_rows,
        "PER_ROW": max(1, form.scales_per_row),
        "PRECISION": CODES[precision],
        "WINDOW": masking.window or 0,
        "SINKS": masking.sinks,
        "SOFT_CAP": masking.soft_cap or 0.0,
    }

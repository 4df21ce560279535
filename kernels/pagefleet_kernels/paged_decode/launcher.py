"""Launches the decode kernels: one grid per precision of the batch, then the merge."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import DecodeLaunch
from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import Address, FrameLayout, Precision
from pagefleet_kernels.paged_decode.plan import NOTHING_SEALED, plan_decode, table_splits
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable
from pagefleet_kernels.variants import Model, combine_variant

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
    start: Start = start,
) -> torch.Tensor:
    """Arguments as in the public function. `splits`, `launch` and `address` override the rules, for measurements;
    `native` is off in the interpreter."""
    native = queries.is_cuda if native is None else native
    out = allocate(tuple(queries.shape), queries.dtype, queries.device)
    if not queries.numel():
        return out
    queries = queries.to(torch.bfloat16).contiguous()
    tables = [table for table in sealed if table.frames.shape[1]]
    shapes = [(table.precision, table.frames.shape[1]) for table in tables]
    plan = plan_decode(
        Model(layout=layout, group=queries.shape[1] // layout.num_kv_heads, masking=masking),
        shapes or [NOTHING_SEALED],
        num_sequences=queries.shape[0],
        multiprocessors=multiprocessors(queries.device),
        splits=splits,
        launch=launch,
        address=address,
    )
    rows = queries.shape[0] * queries.shape[1]
    num_results = 1 if plan.is_direct else rows * plan.num_parts
    parts = allocate((num_results, layout.head_dim), torch.float32, queries.device)
    stats = allocate((num_results, 2), torch.float32, queries.device)
    at = address or layout.address(layer)
    for table, part in zip(tables or [empty_table(open_table)], plan.parts, strict=True):
        start(
            part.variant, (layout.num_kv_heads, part.programs, queries.shape[0]),
            queries, pool, pool.view(torch.bfloat16), pool.view(torch.float32),
            table.frames, table.starts, table.counts, open_table.frames, open_table.starts, open_table.lengths,
            out, parts, stats, scale * LOG2_E, at.tile_base // 128, at.scale_base // 4, table.frames.stride(0),
            open_table.frames.stride(0), part.splits, part.first_part, plan.num_parts, native=native,
        )  # fmt: skip
    if not plan.is_direct:
        merge(parts, stats, out, plan.num_parts, layout, native=native, start=start)
    return out


def merge(
    parts: torch.Tensor,
    stats: torch.Tensor,
    out: torch.Tensor,
    num_parts: int,
    layout: FrameLayout,
    *,
    native: bool,
    start: Start,
) -> None:
    """Merge `num_parts` partial results of every row of `out` [..., D]."""
    rows = out.numel() // layout.head_dim
    start(combine_variant(layout), (rows,), parts, stats, out, num_parts, native=native)


def empty_table(open_table: OpenTable) -> FrameTable:
    """A table without frames: the batch has open frames only."""
    frames = open_table.frames
    return FrameTable(
        precision=Precision.BF16, frames=frames, starts=frames, counts=torch.zeros_like(open_table.lengths)
    )


def choose_splits(table: FrameTable, plan: DecodeLaunch, layout: FrameLayout) -> int:
    """Into how many shares this table's sequences are cut, for reports."""
    return table_splits(
        Model(layout=layout, group=1),
        table.precision,
        table.frames.shape[1],
        num_sequences=table.frames.shape[0],
        multiprocessors=multiprocessors(table.frames.device),
        launch=plan,
    )


def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 for a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1

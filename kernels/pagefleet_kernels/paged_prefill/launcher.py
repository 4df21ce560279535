"""Launches the prefill kernel: once per precision of the batch, and a merge where there are several."""

from __future__ import annotations

from typing import Any

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import PrefillLaunch, power_of_two_from, prefill_launch
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode.kernel import combine_kernel
from pagefleet_kernels.paged_decode.launcher import LOG2_E, empty_table, tile_constants
from pagefleet_kernels.paged_prefill import kernel
from pagefleet_kernels.tables import ChunkTable, Masking

LEAST_SEQUENCES = 8
"""A step with fewer chunks takes the kernel of one with this many: steps vary, and each compile holds a server up."""


def paged_prefill(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chunks: ChunkTable,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    scale: float,
    masking: Masking,
    *,
    launch: PrefillLaunch | None = None,
    native: bool | None = None,
    allocate: Allocate = allocate,
) -> torch.Tensor:
    """Arguments as in the public function. `launch` overrides the rules, for measurements; `native` is off in the
    interpreter."""
    native = queries.is_cuda if native is None else native
    out = allocate(tuple(queries.shape), queries.dtype, queries.device)
    if not queries.numel():
        return out
    queries, keys, values = (x.to(torch.bfloat16).contiguous() for x in (queries, keys, values))
    tables = [t for t in chunks.sealed if t.frames.shape[1]] or [empty_table(chunks.open)]
    direct = len(tables) == 1
    rows = 1 if direct else queries.shape[0] * queries.shape[1] * len(tables)
    parts = allocate((rows, layout.head_dim), torch.float32, queries.device)
    stats = allocate((rows, 2), torch.float32, queries.device)
    group, address = queries.shape[1] // layout.num_kv_heads, layout.address(layer)
    num_sequences = chunks.offsets.shape[0] - 1
    for part, table in enumerate(tables):
        plan = launch or prefill_launch(
            table.precision, group=group, block_size=layout.block_size, head_dim=layout.head_dim
        )
        tiles = queries.shape[0] // (plan.rows // group) + num_sequences
        kernel.prefill_kernel[(layout.num_kv_heads, tiles)](
            queries, keys, values, chunks.offsets, chunks.positions, chunks.group_starts,
            pool, pool.view(torch.bfloat16), pool.view(torch.float32), table.frames, table.starts, table.counts,
            chunks.open.frames, chunks.open.starts, chunks.open.lengths, out, parts, stats,
            scale * LOG2_E, address.tile_base // 128, address.scale_base // 4, table.frames.stride(0),
            chunks.open.frames.stride(0), num_sequences, part, len(tables),
            **prefill_constants(layout, table.precision, group, masking, plan, num_sequences), HAS_RAW=part == 0,
            DIRECT=direct, NATIVE=native, num_warps=plan.num_warps, num_stages=plan.num_stages,
        )  # fmt: skip
    if not direct:
        combine_kernel[(queries.shape[0] * queries.shape[1],)](
            parts, stats, out, len(tables), HEAD_DIM=layout.head_dim, BLOCK_D=power_of_two_from(layout.head_dim),
            PARTS=power_of_two_from(len(tables)), NATIVE=native, num_warps=4,
        )  # fmt: skip
    return out


def prefill_constants(
    layout: FrameLayout, precision: Precision, group: int, masking: Masking, plan: PrefillLaunch, num_sequences: int
) -> dict[str, Any]:
    """The compile-time arguments that follow from shapes."""
    return {
        **tile_constants(layout, layout.address(0), precision, group, masking),
        "ROWS": plan.rows,
        "FRAMES": plan.frames,
        "RAW": plan.raw,
        "SEQUENCES": power_of_two_from(max(num_sequences, LEAST_SEQUENCES)),
        "STAGES": plan.num_stages,
    }

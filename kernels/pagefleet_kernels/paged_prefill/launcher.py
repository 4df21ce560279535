"""Launches the prefill kernel: once per precision of the batch, and a merge where there are several."""

from __future__ import annotations

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import PrefillLaunch
from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.paged_decode.launcher import LOG2_E, empty_table, merge
from pagefleet_kernels.tables import ChunkTable, Masking
from pagefleet_kernels.variants import Model, prefill_variant


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
    start: Start = start,
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
    model = Model(layout=layout, group=queries.shape[1] // layout.num_kv_heads, masking=masking)
    address, num_sequences = layout.address(layer), chunks.offsets.shape[0] - 1
    for part, table in enumerate(tables):
        variant = prefill_variant(model, table.precision, direct=direct, launch=launch)
        tiles = queries.shape[0] // (dict(variant.constants)["ROWS"] // model.group) + num_sequences
        start(
            variant, (layout.num_kv_heads, tiles),
            queries, keys, values, chunks.offsets, chunks.positions, chunks.group_starts,
            pool, pool.view(torch.bfloat16), pool.view(torch.float32), table.frames, table.starts, table.counts,
            chunks.open.frames, chunks.open.starts, chunks.open.lengths, out, parts, stats,
            scale * LOG2_E, address.tile_base // 128, address.scale_base // 4, table.frames.stride(0),
            chunks.open.frames.stride(0), num_sequences, part, len(tables), native=native,
        )  # fmt: skip
    if not direct:
        merge(parts, stats, out, len(tables), layout, native=native, start=start)
    return out

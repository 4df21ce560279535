"""Start every kernel that an engine may need once, on a pool of its own, so that no step waits for a compiler."""

from __future__ import annotations

from collections.abc import Collection

import torch

from pagefleet_kernels.copy_frames import launcher as copies
from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.paged_decode import launcher as decode
from pagefleet_kernels.paged_prefill import launcher as prefill
from pagefleet_kernels.seal_frames import launcher as seals
from pagefleet_kernels.tables import ChunkTable, FrameTable, OpenTable
from pagefleet_kernels.variants import Model
from pagefleet_kernels.write_open import launcher as writes

_FRAMES = 8
"""More than a group of any precision has open."""


def warm(model: Model, precisions: Collection[Precision], device: torch.device, *, start: Start = start) -> None:
    """Start all of `variants(model, precisions)`. Takes the memory of a few frames; compiling takes seconds each."""
    layout = model.layout
    pool = torch.zeros((_FRAMES, layout.frame_bytes), dtype=torch.uint8, device=device)
    one, two = (torch.arange(n, dtype=torch.int32, device=device) for n in (1, 2))
    tokens = torch.zeros((1, layout.num_kv_heads, layout.head_dim), dtype=torch.bfloat16, device=device)
    writes.write_open(pool, layout, 0, one, one, tokens, tokens, start=start)
    copies.copy_frames(pool, layout, two[:1], two[1:].clone(), start=start)
    tables = {precision: _empty(precision, one) for precision in sorted({Precision.BF16, *precisions})}
    for precision, table in tables.items():
        _decode(model, pool, table, 1, start)
        _prefill(model, pool, [table], start)
        if precision in precisions:
            _decode(model, pool, table, 2, start)
            _seal(model, pool, precision, start)
    if len(set(precisions)) > 1:
        _prefill(model, pool, [tables[precision] for precision in sorted(set(precisions))], start)


def _empty(precision: Precision, one: torch.Tensor) -> FrameTable:
    """A table of one sequence without frames in this precision."""
    return FrameTable(precision=precision, frames=one[:, None], starts=one[:, None], counts=one)


def _open(one: torch.Tensor) -> OpenTable:
    return OpenTable(frames=one[:, None], starts=one, lengths=one)


def _decode(model: Model, pool: torch.Tensor, table: FrameTable, splits: int, start: Start) -> None:
    queries = _queries(model, pool)
    decode.paged_decode(
        queries, pool, model.layout, 0, [table], _open(table.counts), 1.0, model.masking, splits=splits, start=start
    )


def _prefill(model: Model, pool: torch.Tensor, tables: list[FrameTable], start: Start) -> None:
    layout, nothing = model.layout, tables[0].counts
    tokens = torch.zeros((1, layout.num_kv_heads, layout.head_dim), dtype=torch.bfloat16, device=pool.device)
    chunks = ChunkTable(
        offsets=torch.arange(2, dtype=torch.int32, device=pool.device),
        positions=nothing,
        group_starts=nothing,
        sealed=tables,
        open=_open(nothing),
    )
    prefill.paged_prefill(
        _queries(model, pool), tokens, tokens, chunks, pool, layout, 0, 1.0, model.masking, start=start
    )


def _seal(model: Model, pool: torch.Tensor, precision: Precision, start: Start) -> None:
    if precision is Precision.BF16:
        return
    layout = model.layout
    group = (1, layout.tokens_per_frame(precision), layout.num_kv_heads, layout.head_dim)
    tokens = torch.zeros(group, dtype=torch.bfloat16, device=pool.device)
    opens = torch.arange(layout.open_frames_per_group(precision), dtype=torch.int32, device=pool.device)
    seals.seal_frames(pool, layout, 0, precision, opens[:1], tokens, tokens, start=start)
    seals.seal_open_frames(pool, layout, [0], precision, opens[None], start=start)


def _queries(model: Model, pool: torch.Tensor) -> torch.Tensor:
    shape = (1, model.group * model.layout.num_kv_heads, model.layout.head_dim)
    return torch.zeros(shape, dtype=torch.bfloat16, device=pool.device)

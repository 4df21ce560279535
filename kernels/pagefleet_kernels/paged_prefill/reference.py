"""Prefill attention in plain torch: the specification.

A query sees the dequantised values of every group before its own, and the raw BF16 values of its own group, taken from
the open frames (tokens of earlier chunks) and from this chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from pagefleet_kernels.attention import FrameRun, KeyBlock, attend, attend_group, in_reach
from pagefleet_kernels.gather import open_block, sealed_block, sealed_run
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.paged_decode.reference import own_run
from pagefleet_kernels.tables import ChunkTable, FrameTable, Masking, OpenTable

QUERY_TILE = 128  # bounds the memory of the score matrix


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
    batch_invariant: bool,
) -> torch.Tensor:
    out = torch.zeros_like(queries)
    positions, group_starts = chunks.positions, chunks.group_starts
    for sequence, (start, end) in enumerate(pairwise(chunks.offsets.tolist())):
        if start == end:
            continue
        chunk = slice(start, end)
        raw = _raw_tokens(keys[chunk], values[chunk], positions[chunk], pool, layout, layer, chunks.open, sequence)
        fresh = _Chunk(queries=queries[chunk], positions=positions[chunk], group_starts=group_starts[chunk], raw=raw)
        if batch_invariant:
            runs = [sealed_run(pool, layout, layer, table, sequence) for table in chunks.sealed]
            one = _by_groups(fresh, runs, layout, scale, masking)
        else:
            blocks = [sealed_block(pool, layout, layer, _only(table, sequence)) for table in chunks.sealed]
            one = _by_tiles(fresh, blocks, scale, masking)
        out[chunk] = one.to(out.dtype)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What one sequence brings to the step, R new tokens."""

    queries: torch.Tensor
    """[R, A, D]"""
    positions: torch.Tensor
    """[R]"""
    group_starts: torch.Tensor
    """[R], the first position of each token's group."""
    raw: KeyBlock
    """The raw tokens that they may see, their own included."""


def _raw_tokens(
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    open_table: OpenTable,
    sequence: int,
) -> KeyBlock:
    """The tokens of earlier chunks in open frames, then the chunk's own, as one block with S = 1."""
    one = slice(sequence, sequence + 1)
    earlier = open_block(
        pool,
        layout,
        layer,
        OpenTable(frames=open_table.frames[one], starts=open_table.starts[one], lengths=open_table.lengths[one]),
    )
    count = int(open_table.lengths[sequence])

    def joined(before: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
        return torch.cat((before[:, :, :count], fresh.to(torch.bfloat16).float().transpose(0, 1)[None]), dim=2)

    return KeyBlock(
        keys=joined(earlier.keys, keys),
        values=joined(earlier.values, values),
        positions=torch.cat((earlier.positions[:, :count], positions[None]), dim=1),
    )


def _by_tiles(chunk: _Chunk, blocks: list[KeyBlock], scale: float, masking: Masking) -> torch.Tensor:
    """Tile by tile of the queries, each against all sealed tokens at once."""
    raw = chunk.raw
    tiles = []
    for start in range(0, chunk.queries.shape[0], QUERY_TILE):
        tile = slice(start, start + QUERY_TILE)
        at, group = chunk.positions[None, tile], chunk.group_starts[None, tile, None]
        seen = [(b, in_reach(at, b.positions, masking) & (b.positions[:, None] < group)) for b in blocks]
        seen.append((raw, in_reach(at, raw.positions, masking) & (raw.positions[:, None] >= group)))
        tiles.append(attend(chunk.queries[None, tile], seen, scale, masking.soft_cap)[0])
    return torch.cat(tiles)


def _only(table: FrameTable, sequence: int) -> FrameTable:
    one = slice(sequence, sequence + 1)
    return FrameTable(
        precision=table.precision, frames=table.frames[one], starts=table.starts[one], counts=table.counts[one]
    )


def _by_groups(
    chunk: _Chunk, runs: list[FrameRun], layout: FrameLayout, scale: float, masking: Masking
) -> torch.Tensor:
    """The same products as in decode: group by group, each against the sealed frames before it."""
    raw = chunk.raw
    out = []
    groups, sizes = torch.unique_consecutive(chunk.group_starts, return_counts=True)
    first = 0
    for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
        rows = slice(first, first + size)
        positions = chunk.positions[rows]
        before = [_frames_before(run, group) for run in runs]
        mine = (raw.positions[0] >= group) & (raw.positions[0] <= positions[-1])
        own = own_run(raw.keys[0][:, mine], raw.values[0][:, mine], raw.positions[0][mine], layout)
        out.append(attend_group(chunk.queries[rows], positions, before, own, scale, masking))
        first += size
    return torch.cat(out)


def _frames_before(run: FrameRun, group: int) -> FrameRun:
    count = int((run.positions[:, 0] < group).sum())
    return FrameRun(keys=run.keys[:count], values=run.values[:count], positions=run.positions[:count])

"""Decode attention in plain torch: the specification."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.attention import NOWHERE, FrameRun, KeyBlock, attend, attend_group, in_reach
from pagefleet_kernels.gather import open_block, sealed_block, sealed_run
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable


def paged_decode(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    sealed: Sequence[FrameTable],
    open_table: OpenTable,
    scale: float,
    masking: Masking,
    batch_invariant: bool,
) -> torch.Tensor:
    positions = open_table.starts + open_table.lengths - 1
    own = open_block(pool, layout, layer, open_table)
    if batch_invariant:
        return torch.cat(
            [
                _one_sequence(queries, positions, pool, layout, layer, sealed, own, sequence, scale, masking)
                for sequence in range(queries.shape[0])
            ]
        ).to(queries.dtype)
    blocks = [sealed_block(pool, layout, layer, table) for table in sealed]
    seen = [(block, in_reach(positions[:, None], block.positions, masking)) for block in [*blocks, own]]
    return attend(queries[:, None], seen, scale, masking.soft_cap)[:, 0].to(queries.dtype)


def _one_sequence(
    queries: torch.Tensor,
    positions: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    sealed: Sequence[FrameTable],
    own: KeyBlock,
    sequence: int,
    scale: float,
    masking: Masking,
) -> torch.Tensor:
    runs = [sealed_run(pool, layout, layer, table, sequence) for table in sealed]
    return attend_group(
        queries[sequence : sequence + 1],
        positions[sequence : sequence + 1],
        runs,
        own_run(own.keys[sequence], own.values[sequence], own.positions[sequence], layout),
        scale,
        masking,
    )


def own_run(keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, layout: FrameLayout) -> FrameRun:
    """Raw tokens of one group, [H, n, D] at `positions` [n], padded to a size that holds a group of any precision."""
    size = 4 * layout.block_size
    padded_keys = keys.new_zeros((1, keys.shape[0], size, keys.shape[2]))
    padded_values = torch.zeros_like(padded_keys)
    padded_positions = positions.new_full((1, size), NOWHERE)
    count = min(size, keys.shape[1])
    padded_keys[0, :, :count], padded_values[0, :, :count] = keys[:, :count], values[:, :count]
    padded_positions[0, :count] = positions[:count]
    return FrameRun(keys=padded_keys, values=padded_values, positions=padded_positions)

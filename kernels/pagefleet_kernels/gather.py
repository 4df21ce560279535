"""Collect the keys and values that a batch's tables name, dequantised, as the torch references need them.

Legend: S sequences, W table width, H KV heads, T tokens of a frame, D head dim.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.attention import NOWHERE, FrameRun, KeyBlock
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.read_frames import read_tiles
from pagefleet_kernels.tables import FrameTable, OpenTable


def sealed_block(pool: torch.Tensor, layout: FrameLayout, layer: int, table: FrameTable) -> KeyBlock:
    """All sealed tokens of a table, [S, H, W * T, D], with W cut to the longest sequence."""
    width = int(table.counts.max()) if table.counts.numel() else 0
    used = torch.arange(width, device=pool.device) < table.counts[:, None]
    keys, values = _padded(pool, layout, layer, table.precision, table.frames[:, :width], used)
    slots = torch.arange(keys.shape[3], device=pool.device)
    positions = table.starts[:, :width, None].masked_fill(~used[..., None], NOWHERE - keys.shape[3]) + slots
    positions = positions.masked_fill(~used[..., None], NOWHERE)
    return KeyBlock(keys=_flat(keys), values=_flat(values), positions=positions.flatten(1))


def open_block(pool: torch.Tensor, layout: FrameLayout, layer: int, table: OpenTable) -> KeyBlock:
    """The written tokens of the open frames, [S, H, W * block_size, D], with W cut to the longest sequence."""
    longest = int(table.lengths.max()) if table.lengths.numel() else 0
    width = -(-longest // layout.block_size)
    used = torch.arange(width, device=pool.device) * layout.block_size < table.lengths[:, None]
    keys, values = _padded(pool, layout, layer, Precision.BF16, table.frames[:, :width], used)
    slots = torch.arange(width * layout.block_size, device=pool.device)
    written = slots < table.lengths[:, None]
    positions = (table.starts[:, None] + slots).masked_fill(~written, NOWHERE)
    hidden = ~written[:, None, :, None]  # the tail may hold anything, NaN included
    return KeyBlock(
        keys=_flat(keys).masked_fill(hidden, 0.0), values=_flat(values).masked_fill(hidden, 0.0), positions=positions
    )


def sealed_run(pool: torch.Tensor, layout: FrameLayout, layer: int, table: FrameTable, sequence: int) -> FrameRun:
    """The sealed frames of one sequence, in table order."""
    count = int(table.counts[sequence])
    keys, values = read_tiles(pool, layout, layer, table.precision, table.frames[sequence, :count])
    slots = torch.arange(keys.shape[2], device=pool.device)
    return FrameRun(keys=keys, values=values, positions=table.starts[sequence, :count, None] + slots)


def _padded(
    pool: torch.Tensor, layout: FrameLayout, layer: int, precision: Precision, frames: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[S, W, H, T, D] twice; zeros where a frame is not used, so that its bytes are never read."""
    if bool(used.all()):
        keys, values = read_tiles(pool, layout, layer, precision, frames.flatten())
        return keys.view(*frames.shape, *keys.shape[1:]), values.view(*frames.shape, *values.shape[1:])
    keys, values = read_tiles(pool, layout, layer, precision, frames[used])
    shape = (*frames.shape, *keys.shape[1:])
    padded_keys, padded_values = keys.new_zeros(shape), values.new_zeros(shape)
    padded_keys[used], padded_values[used] = keys, values
    return padded_keys, padded_values


def _flat(tokens: torch.Tensor) -> torch.Tensor:
    """[S, W, H, T, D] -> [S, H, W * T, D]"""
    return tokens.transpose(1, 2).flatten(2, 3)

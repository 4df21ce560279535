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
    return KeyBlock(keys=keys.flatten(2, 3), values=values.flatten(2, 3), positions=positions.flatten(1))


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
        keys=keys.flatten(2, 3).masked_fill(hidden, 0.0),
        values=values.flatten(2, 3).masked_fill(hidden, 0.0),
        positions=positions,
    )


def sealed_run(pool: torch.Tensor, layout: FrameLayout, layer: int, table: FrameTable, sequence: int) -> FrameRun:
    """The sealed frames of one sequence, in table order."""
    count = int(table.counts[sequence])
    keys, values = read_tiles(pool, layout, layer, table.precision, table.frames[sequence, :count])
    slots = torch.arange(keys.shape[2], device=pool.device)
    return FrameRun(
        keys=keys.transpose(0, 1).contiguous(),
        values=values.transpose(0, 1).contiguous(),
        positions=table.starts[sequence, :count, None] + slots,
    )


def _padded(
    pool: torch.Tensor, layout: FrameLayout, layer: int, precision: Precision, frames: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[S, H, W, T, D] twice; zeros where a frame is not used, whose bytes are never read."""
    if bool(used.all()):
        return read_tiles(pool, layout, layer, precision, frames)
    some_frame = frames[used][:1]
    if some_frame.numel() == 0:
        some_frame = frames.new_zeros(1)
    keys, values = read_tiles(pool, layout, layer, precision, torch.where(used, frames, some_frame))
    unused = ~used[:, None, :, None, None]
    return keys.masked_fill_(unused, 0.0), values.masked_fill_(unused, 0.0)

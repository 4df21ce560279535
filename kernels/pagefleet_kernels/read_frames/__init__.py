"""Read sealed frames back as K and V, dequantised: for the reference attention, for tests and for quality measurements.

Plain torch only; the Triton attention kernels dequantise in registers instead.
Legend: n frames, T tokens per frame, H KV heads, D head dim.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.codec import decode_tiles
from pagefleet_kernels.layout import FrameLayout, Part, Precision
from pagefleet_kernels.pool import check_layer, check_pool, check_shape, scale_view, tile_view


def read_tiles(
    pool: torch.Tensor, layout: FrameLayout, layer: int, precision: Precision, frames: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of `frames` [..., n], fp32 [..., H, n, T, D] each. Unchecked: `read_frames` checks."""
    index = frames.long()[..., None, :]
    heads = torch.arange(layout.num_kv_heads, device=pool.device)[:, None]
    tiles, scales = tile_view(pool, layout)[:, layer], scale_view(pool, layout)[:, layer]
    keys, values = (
        decode_tiles(tiles[index, part, heads], scales[index, part, heads], part, precision, layout) for part in Part
    )
    return keys, values


def read_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    precision: Precision,
    frames: torch.Tensor,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of `frames` [n], [n, T, H, D] each in `dtype`. Open frames read as precision bf16."""
    check_pool(pool, layout)
    check_layer(layout, layer)
    check_shape("frames", frames, (-1,))
    keys, values = read_tiles(pool, layout, layer, precision, frames)
    return keys.permute(1, 2, 0, 3).to(dtype), values.permute(1, 2, 0, 3).to(dtype)

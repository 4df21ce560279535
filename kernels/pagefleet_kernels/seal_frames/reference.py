"""Sealing in plain torch: the specification. Numerics are in `codec`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.codec import encode_tiles
from pagefleet_kernels.layout import FrameLayout, Part, Precision
from pagefleet_kernels.pool import bf16_view, scale_view, tile_view


def seal_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    precision: Precision,
    frames: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    index = frames.long()
    for part, tokens in ((Part.KEYS, keys), (Part.VALUES, values)):
        tiles, scales = encode_tiles(tokens.transpose(1, 2), part, precision, layout)
        tile_view(pool, layout)[index, layer, int(part)] = tiles
        scale_view(pool, layout)[index, layer, int(part)] = scales


def seal_open_frames(
    pool: torch.Tensor, layout: FrameLayout, layers: Sequence[int], precision: Precision, frames: torch.Tensor
) -> None:
    num_tokens = layout.tokens_per_frame(precision)
    index = frames.long()
    for layer in layers:
        # [G, opens, 2, H, B, D] -> [2, G, tokens, H, D]; the indexed read is a copy, so writing in place is safe
        tokens = bf16_view(pool, layout)[index, layer].permute(2, 0, 1, 4, 3, 5).flatten(2, 3)[:, :, :num_tokens]
        seal_frames(pool, layout, layer, precision, frames[:, 0], tokens[0], tokens[1])

"""Views of the byte pool as tiles and scales, and the checks that every op makes of it.

Legend: F frames of the pool, L layers, H KV heads, B block size, D head dim.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.layout import FrameLayout


def check_pool(pool: torch.Tensor, layout: FrameLayout) -> None:
    """Raise ValueError unless `pool` is a contiguous uint8 tensor [F, frame_bytes] of this layout."""
    if pool.dtype is not torch.uint8 or pool.dim() != 2 or not pool.is_contiguous():
        raise ValueError(f"pool {tuple(pool.shape)} {pool.dtype}: must be a contiguous uint8 tensor of two dimensions")
    if pool.shape[1] != layout.frame_bytes:
        raise ValueError(f"pool {tuple(pool.shape)}: its rows must be {layout.frame_bytes} bytes, as the layout says")


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Raise ValueError unless `tensor` has the expected shape; -1 stands for any size."""
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(want not in (-1, got) for got, want in zip(shape, expected, strict=True)):
        raise ValueError(f"{name} {shape}: must have the shape {expected}")


def check_layer(layout: FrameLayout, layer: int) -> None:
    """Raise ValueError for a layer that the layout does not hold."""
    if not 0 <= layer < layout.num_layers:
        raise ValueError(f"layer {layer}: the layout holds layers 0 to {layout.num_layers - 1}")


def split_last(x: torch.Tensor, *sizes: int) -> torch.Tensor:
    """The last dimension as several; a view."""
    return x.view(*x.shape[:-1], *sizes)


def tile_view(pool: torch.Tensor, layout: FrameLayout) -> torch.Tensor:
    """The tiles of all frames, uint8 [F, L, 2, H, tile_bytes], a view."""
    payload = pool[:, : layout.payload_bytes]
    return split_last(payload, layout.num_layers, 2, layout.num_kv_heads, layout.tile_bytes)


def bf16_view(pool: torch.Tensor, layout: FrameLayout) -> torch.Tensor:
    """The tiles of open and BF16 frames, bf16 [F, L, 2, H, B, D], a view."""
    tokens = pool[:, : layout.payload_bytes].view(torch.bfloat16)
    return split_last(tokens, layout.num_layers, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)


def scale_view(pool: torch.Tensor, layout: FrameLayout) -> torch.Tensor:
    """The scale area of all frames, fp32 [F, L, 2, H], a view."""
    end = layout.payload_bytes + layout.num_layers * 2 * layout.num_kv_heads * 4
    scales = pool[:, layout.payload_bytes : end].view(torch.float32)
    return split_last(scales, layout.num_layers, 2, layout.num_kv_heads)

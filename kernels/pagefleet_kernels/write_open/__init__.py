"""Write fresh K and V of one layer into open frames, rounded to bf16.

Legend: N tokens, H KV heads, D head dim.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.pool import check_layer, check_pool, check_shape
from pagefleet_kernels.write_open import reference


def write_open(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    frames: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    impl: Impl = "auto",
) -> None:
    """Write keys and values [N, H, D] to slot `slots` [N] of open frame `frames` [N].

    A frame of -1 marks a padding row, which writes nothing. Raises ValueError for a tensor of another shape.
    """
    check_pool(pool, layout)
    check_layer(layout, layer)
    check_shape("frames", frames, (-1,))
    check_shape("slots", slots, (frames.shape[0],))
    check_shape("keys", keys, (frames.shape[0], layout.num_kv_heads, layout.head_dim))
    check_shape("values", values, (frames.shape[0], layout.num_kv_heads, layout.head_dim))
    if use_triton(impl, pool):
        from pagefleet_kernels.write_open import launcher

        launcher.write_open(pool, layout, layer, frames, slots, keys, values)
        return
    reference.write_open(pool, layout, layer, frames, slots, keys, values)

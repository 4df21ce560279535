"""Launches the kernel that writes open frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.launch import power_of_two_from
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.write_open import kernel


def write_open(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    frames: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    if not frames.numel():
        return
    address = layout.address(layer)
    kernel.write_open_kernel[(frames.shape[0],)](
        pool.view(torch.bfloat16), keys.contiguous(), values.contiguous(), frames, slots, address.tile_base,
        KV_HEADS=layout.num_kv_heads, BLOCK_H=power_of_two_from(layout.num_kv_heads), HEAD_DIM=layout.head_dim,
        BLOCK_D=power_of_two_from(layout.head_dim), FRAME_BYTES=address.frame_stride, TILE_BYTES=layout.tile_bytes,
        num_warps=4,
    )  # fmt: skip

"""Launches the kernel that writes open frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.variants import write_open_variant
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
        **write_open_variant(layout).options(),
    )  # fmt: skip

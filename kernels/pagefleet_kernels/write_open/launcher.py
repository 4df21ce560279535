"""Launches the kernel that writes open frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.variants import write_open_variant


def write_open(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    frames: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    start: Start = start,
) -> None:
    if not frames.numel():
        return
    start(
        write_open_variant(layout), (frames.shape[0],), pool.view(torch.bfloat16), keys.contiguous(),
        values.contiguous(), frames, slots, layout.address(layer).tile_base, native=pool.is_cuda,
    )  # fmt: skip

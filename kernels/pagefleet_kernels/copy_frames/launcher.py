"""Launches the kernel that copies frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.launch import plain_launch
from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.variants import copy_variant


def copy_frames(
    pool: torch.Tensor, layout: FrameLayout, sources: torch.Tensor, targets: torch.Tensor, *, start: Start = start
) -> None:
    if not sources.numel():
        return
    variant = copy_variant(layout)
    blocks = -(-(layout.frame_bytes // 4) // plain_launch(variant.kernel).block)
    words = pool.view(torch.int32)
    start(variant, (sources.shape[0], blocks), words, sources, targets, native=pool.is_cuda)

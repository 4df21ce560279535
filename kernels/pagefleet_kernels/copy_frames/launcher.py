"""Launches the kernel that copies frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.copy_frames import kernel
from pagefleet_kernels.launch import plain_launch
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.variants import copy_variant


def copy_frames(pool: torch.Tensor, layout: FrameLayout, sources: torch.Tensor, targets: torch.Tensor) -> None:
    if not sources.numel():
        return
    variant = copy_variant(layout)
    blocks = -(-(layout.frame_bytes // 4) // plain_launch(variant.kernel).block)
    kernel.copy_frames_kernel[(sources.shape[0], blocks)](pool.view(torch.int32), sources, targets, **variant.options())

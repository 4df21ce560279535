"""Launches the kernel that copies frames."""

from __future__ import annotations

import torch

from pagefleet_kernels.copy_frames import kernel
from pagefleet_kernels.layout import FrameLayout

BLOCK = 4096


def copy_frames(pool: torch.Tensor, layout: FrameLayout, sources: torch.Tensor, targets: torch.Tensor) -> None:
    if not sources.numel():
        return
    words = layout.frame_bytes // 4
    kernel.copy_frames_kernel[(sources.shape[0], -(-words // BLOCK))](
        pool.view(torch.int32), sources, targets, FRAME_WORDS=words, BLOCK=BLOCK, num_warps=8
    )

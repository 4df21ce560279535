"""Copy whole frames, payload and scales together: inside the pool for forks, to and from host memory for swap.

A frame is one contiguous row, so a swap is one transfer per frame; on CUDA the caller gives a stream and waits for its
event before it uses either side again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.pool import check_pool, check_shape


def copy_frames(
    pool: torch.Tensor, layout: FrameLayout, sources: torch.Tensor, targets: torch.Tensor, *, impl: Impl = "auto"
) -> None:
    """Copy frames `sources` [n] to frames `targets` [n]. No target may be a source or occur twice."""
    check_pool(pool, layout)
    check_shape("sources", sources, (-1,))
    check_shape("targets", targets, (sources.shape[0],))
    if use_triton(impl, pool):
        from pagefleet_kernels.copy_frames import launcher

        launcher.copy_frames(pool, layout, sources, targets)
        return
    pool[targets.long()] = pool[sources.long()]


def frames_to_host(
    pool: torch.Tensor, layout: FrameLayout, host: torch.Tensor, frames: Sequence[int], slots: Sequence[int]
) -> None:
    """Copy each of `frames` to the row of `host` [slots, frame_bytes] at the same place in `slots`.

    Asynchronous on the current stream when the pool is on a GPU and `host` is pinned.
    """
    check_pool(pool, layout)
    check_pool(host, layout)
    for frame, slot in zip(frames, slots, strict=True):
        host[slot].copy_(pool[frame], non_blocking=True)


def frames_from_host(
    pool: torch.Tensor, layout: FrameLayout, host: torch.Tensor, frames: Sequence[int], slots: Sequence[int]
) -> None:
    """The way back of `frames_to_host`, with the same arguments."""
    check_pool(pool, layout)
    check_pool(host, layout)
    for frame, slot in zip(frames, slots, strict=True):
        pool[frame].copy_(host[slot], non_blocking=True)

"""Quantise full groups of tokens into frames: payload and scales in one go, written once.

Numerics contract: `codec`. The Triton kernels write the same codes and scales as
the reference; bytes that hold neither are unspecified.
Legend: G groups, T tokens of a group in the target precision, H KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.pool import check_layer, check_pool, check_shape
from pagefleet_kernels.seal_frames import reference


def seal_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    precision: Precision,
    frames: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    impl: Impl = "auto",
) -> None:
    """Write one layer of G groups, taken from activations, into `frames` [G] of `pool`.

    keys, values: [G, T, H, D]; rounded to bf16 first, as they would be in an open frame. In precision bf16 this is a
    copy. Raises ValueError for a tensor of another shape.
    """
    check_pool(pool, layout)
    check_layer(layout, layer)
    check_shape("frames", frames, (-1,))
    group = (frames.shape[0], layout.tokens_per_frame(precision), layout.num_kv_heads, layout.head_dim)
    check_shape("keys", keys, group)
    check_shape("values", values, group)
    if use_triton(impl, pool) and precision is not Precision.BF16:
        from pagefleet_kernels.seal_frames import launcher

        launcher.seal_frames(pool, layout, layer, precision, frames, keys, values)
        return
    reference.seal_frames(pool, layout, layer, precision, frames, keys, values)


def seal_open_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layers: Sequence[int],
    precision: Precision,
    frames: torch.Tensor,
    *,
    impl: Impl = "auto",
) -> None:
    """Seal G full groups in place: read the open `frames` [G, opens] in order, write the first of each group.

    `opens` is `layout.open_frames_per_group(precision)`. The other frames of a group are left as they are, for the
    caller to free. Raises ValueError for a tensor of another shape.
    """
    check_pool(pool, layout)
    for layer in layers:
        check_layer(layout, layer)
    check_shape("frames", frames, (-1, layout.open_frames_per_group(precision)))
    if precision is Precision.BF16:
        return  # a full open frame is a sealed one
    if use_triton(impl, pool):
        from pagefleet_kernels.seal_frames import launcher

        launcher.seal_open_frames(pool, layout, layers, precision, frames)
        return
    reference.seal_open_frames(pool, layout, layers, precision, frames)


def demote_frames(
    pool: torch.Tensor, layout: FrameLayout, precision: Precision, frames: torch.Tensor, *, impl: Impl = "auto"
) -> None:
    """Quantise runs of sealed BF16 frames [G, n] in place into the first of each run; all layers.

    Only precisions whose group is a whole number of BF16 frames can be demoted to (FP8: two frames to one).
    """
    num_tokens = layout.tokens_per_frame(precision)
    if precision is Precision.BF16 or num_tokens % layout.block_size:
        raise ValueError(f"precision {precision}: {num_tokens} tokens are no whole number of frames; use an FP8 one")
    seal_open_frames(pool, layout, range(layout.num_layers), precision, frames, impl=impl)

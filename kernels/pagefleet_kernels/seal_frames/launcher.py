"""Launches the seal kernel, once for K and once for V."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from pagefleet_kernels.launch import power_of_two_from
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode.launcher import CODES
from pagefleet_kernels.seal_frames import kernel


def seal_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    precision: Precision,
    frames: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    for part, tokens in enumerate((keys, values)):
        _launch(pool, layout, [layer], precision, frames[:, None], tokens.contiguous(), part)


def seal_open_frames(
    pool: torch.Tensor, layout: FrameLayout, layers: Sequence[int], precision: Precision, frames: torch.Tensor
) -> None:
    for part in range(2):
        _launch(pool, layout, layers, precision, frames, None, part)


@lru_cache(maxsize=256)
def _layer_ids(layers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Made once: a launch must not wait for a copy from the host."""
    return torch.tensor(layers, dtype=torch.int32, device=device)


def _launch(
    pool: torch.Tensor,
    layout: FrameLayout,
    layers: Sequence[int],
    precision: Precision,
    frames: torch.Tensor,
    tokens: torch.Tensor | None,
    part: int,
) -> None:
    if not frames.numel():
        return
    halves = pool.view(torch.bfloat16)
    kernel.seal_kernel[(frames.shape[0], len(layers), layout.num_kv_heads)](
        pool, halves, pool.view(torch.float32), halves if tokens is None else tokens, frames.contiguous(),
        _layer_ids(tuple(layers), pool.device), frames.shape[1],
        **seal_constants(layout, precision, part, from_open=tokens is None), NATIVE=pool.is_cuda, num_warps=4,
    )  # fmt: skip


def seal_constants(layout: FrameLayout, precision: Precision, part: int, *, from_open: bool) -> dict[str, Any]:
    """The compile-time arguments that follow from shapes."""
    form = layout.tile_format(precision)
    return {
        "KV_HEADS": layout.num_kv_heads,
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": power_of_two_from(layout.head_dim),
        "FRAME_BYTES": layout.frame_bytes,
        "TILE_BYTES": layout.tile_bytes,
        "SCALE_AREA": layout.payload_bytes,
        "BLOCK_SIZE": layout.block_size,
        "NUM_TOKENS": form.num_tokens,
        "CODE_ROWS": form.code_rows,
        "BLOCK_ROWS": power_of_two_from(form.code_rows),
        "PER_ROW": max(1, form.scales_per_row),
        "PRECISION": CODES[precision],
        "PART": part,
        "FROM_OPEN": from_open,
    }

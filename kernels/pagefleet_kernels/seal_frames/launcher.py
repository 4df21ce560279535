"""Launches the seal kernel, once for K and once for V."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from pagefleet_kernels.launching import Start, start
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.variants import seal_variant


def seal_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    precision: Precision,
    frames: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    start: Start = start,
) -> None:
    for part, tokens in enumerate((keys, values)):
        _launch(pool, layout, [layer], precision, frames[:, None], tokens.contiguous(), part, start)


def seal_open_frames(
    pool: torch.Tensor,
    layout: FrameLayout,
    layers: Sequence[int],
    precision: Precision,
    frames: torch.Tensor,
    *,
    start: Start = start,
) -> None:
    for part in range(2):
        _launch(pool, layout, layers, precision, frames, None, part, start)


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
    start: Start,
) -> None:
    if not frames.numel():
        return
    halves = pool.view(torch.bfloat16)
    start(
        seal_variant(layout, precision, part, from_open=tokens is None),
        (frames.shape[0], len(layers), layout.num_kv_heads),
        pool,
        halves,
        pool.view(torch.float32),
        halves if tokens is None else tokens,
        frames.contiguous(),
        _layer_ids(tuple(layers), pool.device),
        frames.shape[1],
        native=pool.is_cuda,
    )

"""Writing tokens into open frames in plain torch: the specification."""

from __future__ import annotations

import torch

from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.pool import bf16_view


def write_open(
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    frames: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    used = frames >= 0
    if not bool(used.all()):
        frames, slots, keys, values = frames[used], slots[used], keys[used], values[used]
    tokens = bf16_view(pool, layout)[:, layer]
    index, slot = frames.long(), slots.long()
    tokens[index, 0, :, slot] = keys.to(torch.bfloat16)
    tokens[index, 1, :, slot] = values.to(torch.bfloat16)

"""Row-wise functions in tiles of one size, so that a row's bits do not depend on how many rows came with it.

A product of 1 row and one of 64 take different paths through a CPU's libraries and round differently. With every call
padded to one size there is one path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

INVARIANT_ROWS = 32
"""Rows of a tile under `--batch-invariant`."""


def in_row_tiles(function: Callable[..., tuple[Tensor, ...]], size: int | None, *inputs: Tensor) -> tuple[Tensor, ...]:
    """`function(*inputs)`, computed `size` rows at a time; None computes all rows at once.

    Inputs and outputs have their rows in the first dimension; the last tile is padded with zeros.
    """
    if size is None:
        return function(*inputs)
    num_rows = inputs[0].shape[0]
    results = []
    for start in range(0, num_rows, size):
        tiles = [_padded(part[start : start + size], size) for part in inputs]
        results.append(function(*tiles))
    return tuple(torch.cat(parts)[:num_rows] for parts in zip(*results, strict=True))


def _padded(rows: Tensor, size: int) -> Tensor:
    missing = size - rows.shape[0]
    rows = F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows
    return rows.contiguous()

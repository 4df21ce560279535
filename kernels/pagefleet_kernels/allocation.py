"""Where launchers get the tensors that they fill: a checker puts guards around them."""

from __future__ import annotations

from typing import Protocol

import torch


class Allocate(Protocol):
    """Makes a contiguous tensor of unspecified contents."""

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, /) -> torch.Tensor: ...


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, /) -> torch.Tensor:
    """A tensor of its own."""
    return torch.empty(shape, dtype=dtype, device=device)

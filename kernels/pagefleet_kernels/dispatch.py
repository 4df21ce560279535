"""Which implementation of an op runs: Triton on CUDA tensors, the torch reference elsewhere, or what is asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch

Impl = Literal["auto", "triton", "reference"]


def use_triton(impl: Impl, tensor: torch.Tensor) -> bool:
    """Whether the Triton kernel shall run. Raises ValueError for an unknown name or where Triton cannot run."""
    match impl:
        case "reference":
            return False
        case "auto":
            return tensor.is_cuda and find_spec("triton") is not None
        case "triton":
            if find_spec("triton") is None:
                raise ValueError("impl 'triton': the triton package is missing; install the extra `kernels`")
            return True
    raise ValueError(f"impl {impl!r}: use auto, triton or reference")

"""Launches the rotation kernel."""

from __future__ import annotations

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import plain_launch, power_of_two_from
from pagefleet_kernels.rope import kernel


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, allocate: Allocate = allocate) -> torch.Tensor:
    """x may be a slice of a wider row (queries inside qkv): only its last two dimensions must be dense."""
    num_tokens, heads, head_dim = x.shape
    if x.stride(2) != 1 or x.stride(1) != head_dim:
        x = x.contiguous()
    out = allocate(tuple(x.shape), x.dtype, x.device)
    if num_tokens:
        kernel.rope_kernel[(num_tokens,)](
            x, cos.contiguous(), sin.contiguous(), out, x.stride(0), HEADS=heads, HALF=head_dim // 2,
            BLOCK_H=power_of_two_from(heads), BLOCK=power_of_two_from(head_dim // 2), NATIVE=x.is_cuda,
            num_warps=plain_launch("rope").num_warps,
        )  # fmt: skip
    return out

"""Launches the normalisation kernel."""

from __future__ import annotations

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import plain_launch, power_of_two_from
from pagefleet_kernels.rms_norm import kernel


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, *, allocate: Allocate = allocate) -> torch.Tensor:
    x = x.contiguous()
    out, size = allocate(tuple(x.shape), x.dtype, x.device), x.shape[-1]
    if x.numel():
        kernel.rms_norm_kernel[(x.numel() // size,)](
            x,
            weight,
            out,
            epsilon,
            SIZE=size,
            BLOCK=power_of_two_from(size),
            NATIVE=x.is_cuda,
            num_warps=plain_launch("rms_norm").num_warps,
        )
    return out

"""Launches the gated activation kernel."""

from __future__ import annotations

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.silu_mul import kernel

BLOCK = 1024


def silu_mul(gate_up: torch.Tensor, *, allocate: Allocate = allocate) -> torch.Tensor:
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    out = allocate((*gate_up.shape[:-1], size), gate_up.dtype, gate_up.device)
    if out.numel():
        kernel.silu_mul_kernel[(out.numel() // size, -(-size // BLOCK))](
            gate_up, out, SIZE=size, BLOCK=BLOCK, NATIVE=gate_up.is_cuda, num_warps=4
        )
    return out

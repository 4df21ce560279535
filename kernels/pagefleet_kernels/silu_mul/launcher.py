"""Launches the gated activation kernel."""

from __future__ import annotations

import torch

from pagefleet_kernels.allocation import Allocate, allocate
from pagefleet_kernels.launch import plain_launch
from pagefleet_kernels.silu_mul import kernel


def silu_mul(gate_up: torch.Tensor, *, allocate: Allocate = allocate) -> torch.Tensor:
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    out = allocate((*gate_up.shape[:-1], size), gate_up.dtype, gate_up.device)
    plan = plain_launch("silu_mul")
    if out.numel():
        kernel.silu_mul_kernel[(out.numel() // size, -(-size // plan.block))](
            gate_up, out, SIZE=size, BLOCK=plan.block, NATIVE=gate_up.is_cuda, num_warps=plan.num_warps
        )
    return out

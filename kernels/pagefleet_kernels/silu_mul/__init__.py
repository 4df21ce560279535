"""The gated activation of Llama's MLP: silu(gate) * up.

Numerics contract: fp32 inside, one rounding at the end.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl, use_triton


def silu_mul(gate_up: torch.Tensor, *, impl: Impl = "auto") -> torch.Tensor:
    """gate_up [..., 2 * M], gate first -> [..., M] in the same dtype."""
    if use_triton(impl, gate_up):
        from pagefleet_kernels.silu_mul import launcher

        return launcher.silu_mul(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)

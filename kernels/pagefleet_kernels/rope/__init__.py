"""Rotary position embedding in the half-split form of Llama: channel i turns with channel i + D / 2.

Numerics contract: fp32 inside, one rounding at the end.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.pool import check_shape


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, impl: Impl = "auto") -> torch.Tensor:
    """Rotate x [N, heads, D] by the angles of its tokens; cos and sin are fp32 [N, D / 2]."""
    half = x.shape[-1] // 2
    check_shape("cos", cos, (x.shape[0], half))
    check_shape("sin", sin, (x.shape[0], half))
    if use_triton(impl, x):
        from pagefleet_kernels.rope import launcher

        return launcher.rope(x, cos, sin)
    first, second = x.float().chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)

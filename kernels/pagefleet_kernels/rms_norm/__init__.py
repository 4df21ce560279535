"""Root mean square normalisation, optionally after adding a residual.

Numerics contract: statistics and product in fp32, one rounding at the end.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.pool import check_shape


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, *, impl: Impl = "auto") -> torch.Tensor:
    """x [..., D], weight [D] -> [..., D] in the dtype of x."""
    check_shape("weight", weight, (x.shape[-1],))
    if use_triton(impl, x):
        from pagefleet_kernels.rms_norm import launcher

        return launcher.rms_norm(x, weight, epsilon)
    as_float = x.float()
    inverse = torch.rsqrt(as_float.square().mean(-1, keepdim=True) + epsilon)
    return (as_float * inverse * weight.float()).to(x.dtype)

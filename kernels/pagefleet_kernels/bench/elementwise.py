"""Checks of the elementwise kernels against fp64: one rounding to bf16, and sums that may cancel."""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl
from pagefleet_kernels.rms_norm import rms_norm
from pagefleet_kernels.rope import rope
from pagefleet_kernels.silu_mul import silu_mul


def check_rms_norm(rows: int, size: int, *, impl: Impl = "triton", device: str = "cpu") -> float:
    """Rows of bf16 of very different lengths; the largest error."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((rows, size), generator=generator) * torch.logspace(-3, 3, rows)[:, None]
    x, weight = x.bfloat16(), torch.randn(size, generator=generator).bfloat16()
    got = rms_norm(x.to(device), weight.to(device), 1e-5, impl=impl)
    wide = x.double()
    want = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    return near(got, want)


def check_rope(rows: int, heads: int, head_dim: int, *, impl: Impl = "triton", device: str = "cpu") -> float:
    """Queries as they lie in rows of queries, keys and values; the largest error."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn((rows, heads + 2, head_dim), generator=generator).bfloat16()
    angles = torch.randn((rows, head_dim // 2), generator=generator) * 100
    cos, sin = angles.cos(), angles.sin()
    got = rope(x.to(device)[:, :heads], cos.to(device), sin.to(device), impl=impl)
    first, second = x[:, :heads].double().chunk(2, -1)
    cos, sin = cos.double()[:, None], sin.double()[:, None]
    return near(got, torch.cat([first * cos - second * sin, second * cos + first * sin], -1))


def check_silu_mul(rows: int, size: int, *, impl: Impl = "triton", device: str = "cpu") -> float:
    """Gates on both sides of zero; the largest error."""
    x = (torch.randn((rows, 2 * size), generator=torch.Generator().manual_seed(7)) * 4).bfloat16()
    gate, up = x.double().chunk(2, -1)
    return near(silu_mul(x.to(device), impl=impl), gate * torch.sigmoid(gate) * up)


def near(got: torch.Tensor, want: torch.Tensor) -> float:
    """Half a unit of bf16, 2^-8 of a value, and fp32's own error, 2^-18 of the largest one. Returns the largest error.

    Raises AssertionError beyond that, or for a result that is not finite.
    """
    got = got.cpu().double()
    if not bool(got.isfinite().all()):
        raise AssertionError("not finite")
    error, allowed = (got - want).abs(), want.abs() * 2.0**-8 + float(want.abs().max()) * 2.0**-18
    if bool((error > allowed).any()):
        raise AssertionError(f"error {float((error - allowed).max()):.4g} beyond what is allowed")
    return float(error.max())

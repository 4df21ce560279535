"""Rotary position embedding in Triton: one program per token, all its heads."""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import cast


@triton.jit
def rope_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, stride, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK)[None, :]
    held = (head < HEADS) & (column < HALF)
    at = head * (2 * HALF) + column
    first = tl.load(x_ptr + token * stride + at, mask=held, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + token * stride + at + HALF, mask=held, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * HALF + column, mask=column < HALF, other=0.0)
    sin = tl.load(sin_ptr + token * HALF + column, mask=column < HALF, other=0.0)
    out_ptr += token * (2 * HALF * HEADS) + at
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(out_ptr, cast(first * cos - second * sin, dtype, NATIVE), mask=held)
    tl.store(out_ptr + HALF, cast(second * cos + first * sin, dtype, NATIVE), mask=held)

"""Root mean square normalisation in Triton: one program per row."""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import cast


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, epsilon, SIZE: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    held = column < SIZE
    x = tl.load(x_ptr + row * SIZE + column, mask=held, other=0.0).to(tl.float32)
    inverse = tl.math.rsqrt(tl.sum(x * x, 0) / SIZE + epsilon)
    weight = tl.load(weight_ptr + column, mask=held, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + column, cast(x * inverse * weight, out_ptr.dtype.element_ty, NATIVE), mask=held)

"""silu(gate) * up in Triton: one program per row and block of columns."""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import cast


@triton.jit
def silu_mul_kernel(
    gate_up_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = column < SIZE
    gate = tl.load(gate_up_ptr + row * (2 * SIZE) + column, mask=held, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * (2 * SIZE) + SIZE + column, mask=held, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + column, cast(out, out_ptr.dtype.element_ty, NATIVE), mask=held)

"""Write fresh tokens into open frames, in Triton: one program per token, all heads of K and V."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tile_base"])
def write_open_kernel(
    pool16_ptr, k_ptr, v_ptr, frames_ptr, slots_ptr, tile_base,
    KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    frame = tl.load(frames_ptr + token).to(tl.int64)
    if frame < 0:
        return
    head, d = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_D)[None, :]
    within = (head < KV_HEADS) & (d < HEAD_DIM)
    source = (token * KV_HEADS + head) * HEAD_DIM + d
    slot = tl.load(slots_ptr + token)
    target = frame * (FRAME_BYTES // 2) + tile_base.to(tl.int64) // 2 + slot * HEAD_DIM
    target += head * (TILE_BYTES // 2) + d
    k = tl.load(k_ptr + source, mask=within)
    v = tl.load(v_ptr + source, mask=within)
    tl.store(pool16_ptr + target, k.to(tl.bfloat16), mask=within)
    tl.store(pool16_ptr + target + KV_HEADS * (TILE_BYTES // 2), v.to(tl.bfloat16), mask=within)

"""Copy frames inside the pool, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_frames_kernel(
    pool32_ptr, sources_ptr, targets_ptr, FRAME_WORDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    pair = tl.program_id(0)
    source = tl.load(sources_ptr + pair).to(tl.int64) * FRAME_WORDS
    target = tl.load(targets_ptr + pair).to(tl.int64) * FRAME_WORDS
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(pool32_ptr + source + word, mask=word < FRAME_WORDS)
    tl.store(pool32_ptr + target + word, x, mask=word < FRAME_WORDS)

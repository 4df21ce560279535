"""Triton code that several kernels share: finding tiles, turning codes into 16-bit floats, the online softmax step.

Only `*/kernel.py` modules import this. All addresses are int64: a pool is larger than 2^31 bytes. The pool is passed
three times, as bytes, as bf16 and as fp32, so that every offset counts elements of what is loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

BF16 = tl.constexpr(0)
FP8_E4M3 = tl.constexpr(1)
FP8_E5M2 = tl.constexpr(2)
INT8 = tl.constexpr(3)
INT4 = tl.constexpr(4)

NO_MASK = tl.constexpr(0)
TAIL_MASK = tl.constexpr(1)
ROW_MASK = tl.constexpr(2)

LOG2_E = tl.constexpr(1.4426950408889634)
UNIT = tl.constexpr(128)  # every tile starts at a multiple of this many bytes
SHIFT = tl.constexpr(10.0)  # weights are 2^10 probabilities: their products with V scales stay clear of fp16 subnormals
LARGEST = tl.constexpr(65504.0)  # of fp16

# Four bytes of codes -> four halves: 0x6400 | u is the half 1024 + u, exactly.
_INT8_ASM = tl.constexpr(
    "{ .reg .b32 t, c; xor.b32 t, $2, 0x80808080; mov.b32 c, 0x64806480;"
    " prmt.b32 $0, t, 0x64646464, 0x4140; prmt.b32 $1, t, 0x64646464, 0x4342;"
    " sub.rn.f16x2 $0, $0, c; sub.rn.f16x2 $1, $1, c; }"
)
_LOW_ASM = tl.constexpr(
    "{ .reg .b32 t, c; and.b32 t, $2, 0x0f0f0f0f; mov.b32 c, 0x64006400;"
    " prmt.b32 $0, t, 0x64646464, 0x4140; prmt.b32 $1, t, 0x64646464, 0x4342;"
    " sub.rn.f16x2 $0, $0, c; sub.rn.f16x2 $1, $1, c; }"
)
_HIGH_ASM = tl.constexpr(
    "{ .reg .b32 t, c; shr.u32 t, $2, 4; and.b32 t, t, 0x0f0f0f0f; mov.b32 c, 0x64006400;"
    " prmt.b32 $0, t, 0x64646464, 0x4140; prmt.b32 $1, t, 0x64646464, 0x4342;"
    " sub.rn.f16x2 $0, $0, c; sub.rn.f16x2 $1, $1, c; }"
)


@triton.jit
def codes_to_half(codes, HIGH: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr):
    """uint8 codes -> fp16, exact. INT4: the low or the high nibble. Without NATIVE: the same without inline PTX."""
    if PRECISION == FP8_E4M3:
        half = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif PRECISION == FP8_E5M2:
        half = codes.to(tl.float8e5, bitcast=True).to(tl.float16)
    elif not NATIVE:
        if PRECISION == INT8:
            half = codes.to(tl.int8, bitcast=True).to(tl.float16)
        elif HIGH:
            half = (codes >> 4).to(tl.float16)
        else:
            half = (codes & 15).to(tl.float16)
    elif PRECISION == INT8:
        half = tl.inline_asm_elementwise(_INT8_ASM, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    elif HIGH:
        half = tl.inline_asm_elementwise(_HIGH_ASM, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    else:
        half = tl.inline_asm_elementwise(_LOW_ASM, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    return half


@triton.jit
def capped(scores, SOFT_CAP: tl.constexpr):
    """Scores in units of log2 e; tanh in the form that cannot overflow."""
    if SOFT_CAP != 0.0:
        y = scores * (2.0 / SOFT_CAP)  # exp2(y) = exp(2 * score / cap)
        scores = SOFT_CAP * LOG2_E * (1.0 - 2.0 / (tl.exp2(y) + 1.0))
    return scores


@triton.jit
def softmax_step(scores, scale, largest, total, acc):
    """One step of the online softmax, base 2, of scores * scale: weights, and state rescaled to the new maximum."""
    new = tl.maximum(largest, tl.max(scores, 1) * scale)
    top = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
    weights = tl.exp2(scores * scale - (top - SHIFT)[:, None])
    factor = tl.exp2(largest - top)
    return weights, new, total * factor + tl.sum(weights, 1), acc * factor[:, None], factor


@triton.jit
def value_scale_in_range(scale):
    """A V scale whose product with any weight is finite in fp16: V beyond 28,000 (FP8) or 8,000 (INT8) saturates."""
    return tl.where(scale > 63.0, 63.0, scale)


@triton.jit
def half_query(query):
    """fp16 query, saturated."""
    q = query.to(tl.float32)
    q = tl.where(q > LARGEST, LARGEST, tl.where(q < -LARGEST, -LARGEST, q))
    return q.to(tl.float16)


@triton.jit
def rounded(x, BITS: tl.constexpr):
    """fp32 rounded to the nearest even of `BITS` bits of mantissa, by integer arithmetic."""
    drop: tl.constexpr = 23 - BITS
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + ((1 << (drop - 1)) - 1) + ((bits >> drop) & 1)) & (-1 << drop)
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def to_bf16(x, NATIVE: tl.constexpr):
    """fp32 -> bf16. Without NATIVE, round before the cast: the interpreter loses the carry into the exponent."""
    if not NATIVE:
        x = rounded(x, 7)
    return x.to(tl.bfloat16)


@triton.jit
def cast(x, dtype: tl.constexpr, NATIVE: tl.constexpr):
    """fp32 -> the dtype of a result."""
    if dtype == tl.bfloat16:
        y = to_bf16(x, NATIVE)
    else:
        y = x.to(dtype)
    return y


@triton.jit
def dot_bf16(a, b, NATIVE: tl.constexpr):
    """a @ b in fp32. Without NATIVE (the interpreter has no bf16 product): the same operands as fp32."""
    if NATIVE:
        product = tl.dot(a, b)
    else:
        product = tl.dot(a.to(tl.float32), b.to(tl.float32))
    return product


@triton.jit
def attend_bf16(
    q, pool16_ptr, frame, slot, loaded, seen, head, d, tile_unit, scale_log2, largest, total, acc, bias,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr,
    SOFT_CAP: tl.constexpr, FULL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Attend to BF16 tokens at `slot` [N] of `frame` [N]; `loaded` [N] masks reads, `seen` [rows or 1, N] scores.

    With FULL, every row sees every token, and neither mask is looked at.
    """
    base = frame * (FRAME_BYTES // 2) + tile_unit.to(tl.int64) * (UNIT // 2) + head * (TILE_BYTES // 2)
    base += slot * HEAD_DIM
    within = d < HEAD_DIM
    k_ptrs = pool16_ptr + base[None, :] + d[:, None]
    v_ptrs = pool16_ptr + (base + KV_HEADS * (TILE_BYTES // 2))[:, None] + d[None, :]
    k = load_tile(k_ptrs, within[:, None], loaded[None, :], 0.0, HEAD_DIM, d.shape[0], FULL)
    v = load_tile(v_ptrs, within[None, :], loaded[:, None], 0.0, HEAD_DIM, d.shape[0], FULL)
    scores = dot_bf16(q, k, NATIVE)
    return bf16_update(scores, v, seen, scale_log2, largest, total, acc, bias, SOFT_CAP, FULL, NATIVE)


@triton.jit
def load_tile(
    pointers, within, loaded, other, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """Load with as little of the mask (channels `within`, tokens `loaded`) as is needed."""
    if FULL and HEAD_DIM == BLOCK_D:
        x = tl.load(pointers)
    elif HEAD_DIM == BLOCK_D:
        x = tl.load(pointers, mask=loaded, other=other)
    elif FULL:
        x = tl.load(pointers, mask=within, other=other)
    else:
        x = tl.load(pointers, mask=within & loaded, other=other)
    return x


@triton.jit
def bf16_update(
    scores, v, seen, scale_log2, largest, total, acc, bias,
    SOFT_CAP: tl.constexpr, FULL: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Softmax step and P V for bf16 values."""
    if SOFT_CAP != 0.0:
        scores = capped(scores * scale_log2, SOFT_CAP)
        scale_log2 = 1.0
    if not FULL:
        scores = tl.where(seen, scores, float("-inf"))
    weights, largest, total, acc, factor = softmax_step(scores, scale_log2, largest, total, acc)
    acc += dot_bf16(to_bf16(weights, NATIVE), v, NATIVE)
    return largest, total, acc, bias * factor


@triton.jit
def attend_half(
    q, k, v, k_scale, v_scale, v_low, seen, largest, total, acc, bias,
    SOFT_CAP: tl.constexpr, FULL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to fp16 K and V codes: `k_scale` [N] scales the scores, V = code * v_scale + v_low per token [N]."""
    scores = capped(tl.dot(q, k) * k_scale[None, :], SOFT_CAP)
    if not FULL or PRECISION == INT8 or PRECISION == INT4:  # frames of these have rows without tokens
        scores = tl.where(seen, scores, float("-inf"))
    weights, largest, total, acc, factor = softmax_step(scores, 1.0, largest, total, acc)
    acc = tl.dot((weights * value_scale_in_range(v_scale)[None, :]).to(tl.float16), v, acc)
    if PRECISION == INT4:
        bias = bias * factor + tl.sum(weights * v_low[None, :], 1)
    return largest, total, acc, bias


@triton.jit
def load_codes(
    pool8_ptr, base, slot, loaded, d,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_BYTES: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """K codes [D, N] and V codes [N, D] of the columns `slot` [N] in tiles at byte `base` [N]."""
    within = d < HEAD_DIM
    k_ptrs = pool8_ptr + (base + slot * HEAD_DIM)[None, :] + d[:, None]
    k = load_tile(k_ptrs, within[:, None], loaded[None, :], 0, HEAD_DIM, d.shape[0], FULL)
    v_ptrs = pool8_ptr + (base + KV_HEADS * TILE_BYTES + slot)[:, None] + (d * WIDTH)[None, :]
    v = load_tile(v_ptrs, within[None, :], loaded[:, None], 0, HEAD_DIM, d.shape[0], FULL)
    return k, v


@triton.jit
def value_scales(
    pool16_ptr, base16, token, loaded,
    CODE_ROWS: tl.constexpr, PER_ROW: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scale and minimum [N] of V tokens, from the tails of the rows of V tiles at bf16 element `base16` [N]."""
    entry: tl.constexpr = 2 if PRECISION == INT4 else 1
    at = base16 + (token // PER_ROW) * (WIDTH // 2) + CODE_ROWS // 2 + (token % PER_ROW) * entry
    scale = tl.load(pool16_ptr + at, mask=loaded, other=0.0).to(tl.float32)
    low = tl.zeros_like(scale)
    if PRECISION == INT4:
        low = tl.load(pool16_ptr + at + 1, mask=loaded, other=0.0).to(tl.float32)
    return scale, low


@triton.jit
def key_scales(
    pool16_ptr, base16, d, CODE_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """fp16 scale and minimum [D, 1] or [D, N] of K channels, of tiles at bf16 element `base16`, a scalar or [1, N]."""
    at = pool16_ptr + base16 + CODE_ROWS * (HEAD_DIM // 2) + d[:, None]
    within = (d < HEAD_DIM)[:, None]
    scale = tl.load(at, mask=within, other=0.0).to(tl.float32)
    scale = tl.where(scale > LARGEST / 128, LARGEST / 128, scale).to(tl.float16)
    low = scale
    if PRECISION == INT4:
        low = tl.load(at + HEAD_DIM, mask=within, other=0.0).to(tl.float16)
    return scale, low


@triton.jit
def half_keys(codes, scale, low, HIGH: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr):
    """K as fp16 [D, N]; FP8 codes stay unscaled."""
    k = codes_to_half(codes, HIGH, PRECISION, NATIVE)
    if PRECISION == INT8:
        k = k * scale
    if PRECISION == INT4:
        k = k * scale + low
    return k


@triton.jit
def in_reach(key, position, WINDOW: tl.constexpr, SINKS: tl.constexpr):
    """Causality and window: bool [ROWS, N] from key positions [N] and row positions [ROWS]."""
    near = key[None, :] <= position[:, None]
    if WINDOW != 0:
        near = near & ((key[None, :] > position[:, None] - WINDOW) | (key[None, :] < SINKS))
    return near


@triton.jit
def attend_frames(
    begin, end, q, position, group_start, pool8_ptr, pool16_ptr, pool32_ptr, frames_ptr, starts_ptr, head, d,
    tile_unit, scale_unit, scale_log2, largest, total, acc, bias,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr,
    WIDTH: tl.constexpr, CODE_ROWS: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr,
    FRAMES: tl.constexpr, MASKS: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, SOFT_CAP: tl.constexpr,
    STAGES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Attend to sealed frames begin..end of a table.

    MASKS is NO_MASK (all rows see all of them, a multiple of FRAMES), TAIL_MASK (all rows see all of them) or ROW_MASK
    (a row sees frames that start before its `group_start` [ROWS], within the window of its `position` [ROWS]).
    """
    FULL: tl.constexpr = MASKS == NO_MASK
    columns = tl.arange(0, FRAMES * WIDTH)
    slot = columns % WIDTH
    tile = tile_unit.to(tl.int64) * UNIT + head * TILE_BYTES
    for first in tl.range(begin, end, FRAMES, num_stages=STAGES):
        index = first + columns // WIDTH
        held = index < end
        if FULL:
            frame = tl.load(frames_ptr + index).to(tl.int64)
        else:
            frame = tl.load(frames_ptr + index, mask=held, other=0).to(tl.int64)
        filled = held & (slot < CODE_ROWS)
        start, mine, near = slot, filled[None, :], filled[None, :]
        if MASKS == ROW_MASK:
            start = tl.load(starts_ptr + index, mask=held, other=0)
            mine = near & (start[None, :] < group_start[:, None])
            near = mine & in_reach(start + slot, position, WINDOW, SINKS)
        if PRECISION == BF16:
            largest, total, acc, bias = attend_bf16(
                q, pool16_ptr, frame, slot, held, near, head, d, tile_unit, scale_log2, largest, total, acc, bias,
                KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, SOFT_CAP, FULL, NATIVE,
            )  # fmt: skip
        else:
            base = frame * FRAME_BYTES + tile
            k, v = load_codes(pool8_ptr, base, slot, held, d, KV_HEADS, HEAD_DIM, TILE_BYTES, WIDTH, FULL)
            if PRECISION == INT8 or PRECISION == INT4:
                if FRAMES == 1:  # one vector of scales instead of one per column
                    k_base = tl.load(frames_ptr + first).to(tl.int64) * (FRAME_BYTES // 2) + tile // 2
                else:
                    k_base = (base // 2)[None, :]
                k_mul, k_add = key_scales(pool16_ptr, k_base, d, CODE_ROWS, HEAD_DIM, PRECISION)
                v_base = base // 2 + KV_HEADS * (TILE_BYTES // 2)
                v_mul, v_add = value_scales(pool16_ptr, v_base, slot, filled, CODE_ROWS, PER_ROW, WIDTH, PRECISION)
                k_scale = tl.zeros_like(v_mul) + scale_log2
            else:
                scales = pool32_ptr + frame * (FRAME_BYTES // 4) + scale_unit.to(tl.int64) + head
                if FULL:
                    k_scale = tl.load(scales) * scale_log2
                    v_mul = tl.load(scales + KV_HEADS)
                else:
                    k_scale = tl.load(scales, mask=held, other=0.0) * scale_log2
                    v_mul = tl.load(scales + KV_HEADS, mask=held, other=0.0)
                k_mul, k_add, v_add = q, q, tl.zeros_like(v_mul)
            largest, total, acc, bias = attend_half(
                q, half_keys(k, k_mul, k_add, False, PRECISION, NATIVE), codes_to_half(v, False, PRECISION, NATIVE),
                k_scale, v_mul, v_add, near, largest, total, acc, bias, SOFT_CAP, FULL, PRECISION,
            )  # fmt: skip
            if PRECISION == INT4:
                v_mul, v_add = value_scales(
                    pool16_ptr, v_base, slot + CODE_ROWS, filled, CODE_ROWS, PER_ROW, WIDTH, PRECISION
                )
                if MASKS == ROW_MASK:
                    near = mine & in_reach(start + CODE_ROWS + slot, position, WINDOW, SINKS)
                largest, total, acc, bias = attend_half(
                    q, half_keys(k, k_mul, k_add, True, PRECISION, NATIVE), codes_to_half(v, True, PRECISION, NATIVE),
                    k_scale, v_mul, v_add, near, largest, total, acc, bias, SOFT_CAP, FULL, PRECISION,
                )  # fmt: skip
    return largest, total, acc, bias

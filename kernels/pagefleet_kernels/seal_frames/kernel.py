"""Quantise groups of tokens into tiles, in Triton. One program seals one (group, layer, K|V, head) tile.

A tile's source in the open frames and its target in the first of them are the same bytes of the same program, so
sealing in place needs no other synchronisation than the barrier between the last read and the first write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import FP8_E4M3, FP8_E5M2, INT4, INT8, rounded

FLOOR = tl.constexpr(1e-30)
ROUND = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds to the nearest even integer


@triton.jit
def _bf16_above(x):
    bits = (x.to(tl.int32, bitcast=True) + 0xFFFF) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _fp8_rounded(y, BITS: tl.constexpr, SMALLEST: tl.constexpr, UNIT_MAGIC: tl.constexpr):
    """The nearest FP8 value: BITS of mantissa, and one unit below the smallest normal number."""
    return tl.where(tl.abs(y) < SMALLEST, (y + UNIT_MAGIC) - UNIT_MAGIC, rounded(y, BITS))


@triton.jit
def _finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def _tokens(
    open_ptr, values_ptr, frames_ptr, group, part, layer, head, token, d, opens, held,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NUM_TOKENS: tl.constexpr, FROM_OPEN: tl.constexpr,
):  # fmt: skip
    """fp32 [T, D] of one group, layer, half and head; zeros where `held` [T] is off."""
    within = held[:, None] & (d < HEAD_DIM)[None, :]
    if FROM_OPEN:
        frame = tl.load(frames_ptr + group * opens + token // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        tile = ((layer * 2 + part) * KV_HEADS + head) * (TILE_BYTES // 2)
        at = (frame * (FRAME_BYTES // 2) + tile + (token % BLOCK_SIZE) * HEAD_DIM)[:, None] + d[None, :]
        x = tl.load(open_ptr + at, mask=within, other=0.0)
    else:
        at = (((group * NUM_TOKENS + token) * KV_HEADS + head) * HEAD_DIM)[:, None] + d[None, :]
        x = tl.load(values_ptr + at, mask=within, other=0.0).to(tl.bfloat16)
    return x.to(tl.float32)


@triton.jit
def _integer_codes(
    x, held, axis: tl.constexpr, shared_low, shared_scale, PRECISION: tl.constexpr
):  # fmt: skip
    if PRECISION == INT4:
        y = (x - shared_low) * tl.div_rn(tl.zeros_like(shared_scale) + 1.0, shared_scale)
        y = tl.where(y > 15.0, 15.0, tl.where(y < 0.0, 0.0, y))
    else:
        y = x * tl.div_rn(tl.zeros_like(shared_scale) + 1.0, shared_scale)
        y = tl.where(y > 127.0, 127.0, tl.where(y < -127.0, -127.0, y))
    y = tl.where(y == y, (y + ROUND) - ROUND, 0.0)
    return y.to(tl.int32)


@triton.jit
def _absmax_scale(x, axis: tl.constexpr):
    top = tl.max(tl.where(_finite(x), tl.abs(x), 0.0), axis)
    scale = tl.div_rn(top, tl.zeros_like(top) + 127.0)
    return _bf16_above(tl.where(scale > FLOOR, scale, FLOOR))


@triton.jit
def _nan_scale(scale, x, axis: tl.constexpr):
    return tl.where(tl.max((x != x).to(tl.int32), axis) > 0, float("nan"), scale)


@triton.jit
def seal_kernel(
    pool8_ptr, pool16_ptr, pool32_ptr, values_ptr, frames_ptr, layers_ptr, opens,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, FRAME_BYTES: tl.constexpr,
    TILE_BYTES: tl.constexpr, SCALE_AREA: tl.constexpr, BLOCK_SIZE: tl.constexpr, NUM_TOKENS: tl.constexpr,
    CODE_ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr,
    PART: tl.constexpr, FROM_OPEN: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    layer = tl.load(layers_ptr + tl.program_id(1)).to(tl.int64)
    head = tl.program_id(2)
    WIDTH: tl.constexpr = 2 * BLOCK_SIZE
    row, d = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_D)
    held = row < CODE_ROWS
    target = tl.load(frames_ptr + group * opens).to(tl.int64)
    tile = target * FRAME_BYTES + ((layer * 2 + PART) * KV_HEADS + head) * TILE_BYTES
    scale_at = pool32_ptr + target * (FRAME_BYTES // 4) + SCALE_AREA // 4 + (layer * 2 + PART) * KV_HEADS + head
    x = _tokens(
        pool16_ptr, values_ptr, frames_ptr, group, PART, layer, head, row, d, opens, held, KV_HEADS, HEAD_DIM,
        FRAME_BYTES, TILE_BYTES, BLOCK_SIZE, NUM_TOKENS, FROM_OPEN,
    )  # fmt: skip
    within = held[:, None] & (d < HEAD_DIM)[None, :]
    if PART == 0:
        codes_at = pool8_ptr + tile + row[:, None] * HEAD_DIM + d[None, :]
    else:
        codes_at = pool8_ptr + tile + d[None, :] * WIDTH + row[:, None]
    if PRECISION == FP8_E4M3 or PRECISION == FP8_E5M2:
        LARGEST_CODE: tl.constexpr = 448.0 if PRECISION == FP8_E4M3 else 57344.0
        top = tl.max(tl.max(tl.where(_finite(x), tl.abs(x), 0.0), 1), 0)
        scale = tl.div_rn(top, tl.zeros_like(top) + LARGEST_CODE)
        scale = tl.where(scale > FLOOR, scale, FLOOR)
        y = x * tl.div_rn(tl.zeros_like(scale) + 1.0, scale)
        y = tl.where(y > LARGEST_CODE, LARGEST_CODE, tl.where(y < -LARGEST_CODE, -LARGEST_CODE, y))
        if PRECISION == FP8_E4M3:
            if not NATIVE:
                y = _fp8_rounded(y, 3, 0.015625, 24576.0)  # below 2^-6 the unit is 2^-9
            codes = y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            if not NATIVE:
                y = _fp8_rounded(y, 2, 6.103515625e-05, 192.0)  # below 2^-14 it is 2^-16
            codes = y.to(tl.float8e5).to(tl.uint8, bitcast=True)
        tl.debug_barrier()
        tl.store(codes_at, codes, mask=within)
        tl.store(scale_at, scale)
    else:
        AXIS: tl.constexpr = PART  # K: over tokens, V: over channels
        high_x = x
        if PRECISION == INT4:
            high_x = _tokens(
                pool16_ptr, values_ptr, frames_ptr, group, PART, layer, head, row + CODE_ROWS, d, opens, held, KV_HEADS,
                HEAD_DIM, FRAME_BYTES, TILE_BYTES, BLOCK_SIZE, NUM_TOKENS, FROM_OPEN,
            )  # fmt: skip
        if PART == 0:
            entry = tile // 2 + CODE_ROWS * (HEAD_DIM // 2) + d
            second: tl.constexpr = HEAD_DIM
            kept, high_entry = d < HEAD_DIM, entry
        else:
            ENTRY: tl.constexpr = 2 if PRECISION == INT4 else 1
            v16 = tile // 2 + CODE_ROWS // 2
            entry = v16 + (row // PER_ROW) * (WIDTH // 2) + (row % PER_ROW) * ENTRY
            high = row + CODE_ROWS
            high_entry = v16 + (high // PER_ROW) * (WIDTH // 2) + (high % PER_ROW) * ENTRY
            second: tl.constexpr = 1
            kept = held
        if PRECISION == INT8:
            scale = _absmax_scale(x, AXIS)
            codes = _integer_codes(x, held, AXIS, 0.0, tl.expand_dims(scale, AXIS), PRECISION)
            tl.debug_barrier()
            tl.store(codes_at, codes.to(tl.uint8), mask=within)
            tl.store(pool16_ptr + entry, _nan_scale(scale, x, AXIS).to(tl.bfloat16), mask=kept)
        else:
            _seal_int4(
                pool16_ptr, codes_at, x, high_x, within, entry, high_entry, kept, second, AXIS, PRECISION
            )  # fmt: skip
        tl.store(scale_at, 1.0)


@triton.jit
def _bounds(x, within, axis: tl.constexpr):
    usable = within & _finite(x)
    high = tl.max(tl.where(usable, x, float("-inf")), axis)
    low = tl.min(tl.where(usable, x, float("inf")), axis)
    return high, low


@triton.jit
def _int4_scale(high, low):
    low = tl.where(low > high, 0.0, low)  # nothing finite
    high = tl.where(high < low, low, high)
    scale = tl.div_rn(high - low, tl.zeros_like(low) + 15.0)
    return _bf16_above(tl.where(scale > FLOOR, scale, FLOOR)), low


@triton.jit
def _seal_int4(
    pool16_ptr, codes_at, x, high_x, within, entry, high_entry, kept, SECOND: tl.constexpr, AXIS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Both nibbles. K shares scale and minimum over all tokens; V has its own for each token."""
    top, low = _bounds(x, within, AXIS)
    high_top, high_low = _bounds(high_x, within, AXIS)
    if AXIS == 0:
        top, low = tl.maximum(top, high_top), tl.minimum(low, high_low)
        high_top, high_low = top, low
    scale, low = _int4_scale(top, low)
    high_scale, high_low = _int4_scale(high_top, high_low)
    codes = _integer_codes(x, within, AXIS, tl.expand_dims(low, AXIS), tl.expand_dims(scale, AXIS), PRECISION)
    high_codes = _integer_codes(
        high_x, within, AXIS, tl.expand_dims(high_low, AXIS), tl.expand_dims(high_scale, AXIS), PRECISION
    )
    tl.debug_barrier()
    tl.store(codes_at, (codes | (high_codes << 4)).to(tl.uint8), mask=within)
    scale = _nan_scale(scale, x, AXIS)
    high_scale = _nan_scale(high_scale, high_x, AXIS)
    if AXIS == 0:
        scale = tl.where(high_scale == high_scale, scale, high_scale)
    else:
        tl.store(pool16_ptr + high_entry, high_scale.to(tl.bfloat16), mask=kept)
        tl.store(pool16_ptr + high_entry + SECOND, high_low.to(tl.bfloat16), mask=kept)
    tl.store(pool16_ptr + entry, scale.to(tl.bfloat16), mask=kept)
    tl.store(pool16_ptr + entry + SECOND, low.to(tl.bfloat16), mask=kept)

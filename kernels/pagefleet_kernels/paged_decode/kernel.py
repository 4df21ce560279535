"""Split-KV flash decoding over frames, in Triton.

One program holds the query heads of one KV head (rows), walks over a share of the sealed frames of one sequence, and
leaves an unnormalised result with its maximum and sum; one more program per (sequence, KV head) does the same for the
open frames; `combine_kernel` merges them. With a single split, both loops run in one program, which writes the result itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import (
    BF16,
    INT4,
    INT8,
    UNIT,
    attend_bf16,
    attend_half,
    codes_to_half,
    half_keys,
    half_query,
    key_scales,
    load_codes,
    to_bf16,
    value_scales,
)


@triton.jit
def cast(x, dtype: tl.constexpr, NATIVE: tl.constexpr):
    if dtype == tl.bfloat16:
        y = to_bf16(x, NATIVE)
    else:
        y = x.to(dtype)
    return y


@triton.jit
def _in_window(position, query_position, WINDOW: tl.constexpr, SINKS: tl.constexpr):
    near = position <= query_position
    if WINDOW != 0:
        near = near & ((position > query_position - WINDOW) | (position < SINKS))
    return near


@triton.jit(do_not_specialize=["tile_unit", "scale_unit", "first_part"])
def decode_kernel(
    q_ptr, pool8_ptr, pool16_ptr, pool32_ptr, frames_ptr, starts_ptr, counts_ptr,
    open_frames_ptr, open_starts_ptr, open_lengths_ptr, out_ptr, part_ptr, stat_ptr,
    scale_log2, tile_unit, scale_unit, table_width, open_width, first_part, num_parts,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    CODE_ROWS: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr, FRAMES: tl.constexpr,
    NUM_SPLITS: tl.constexpr, HAS_OPEN: tl.constexpr, DIRECT: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    split = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    within = (row < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_row = (sequence * KV_HEADS + head) * GROUP + row
    q = tl.load(q_ptr + q_row[:, None] * HEAD_DIM + d[None, :], mask=within, other=0.0)
    open_length = tl.load(open_lengths_ptr + sequence)
    position = tl.load(open_starts_ptr + sequence) + open_length - 1
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total, bias = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)

    # -- sealed frames: this program's share, empty for the program of the open frames --
    count = tl.load(counts_ptr + sequence)
    share = tl.cdiv(tl.cdiv(count, NUM_SPLITS), FRAMES) * FRAMES
    begin = tl.minimum(split * share, count)
    end = tl.minimum(begin + share, count)
    columns = tl.arange(0, FRAMES * WIDTH)
    slot = columns % WIDTH
    frames_ptr += sequence * table_width
    starts_ptr += sequence * table_width
    tile = tile_unit.to(tl.int64) * UNIT + head * TILE_BYTES
    for first in tl.range(begin, end, FRAMES, num_stages=STAGES):
        index = first + columns // WIDTH
        held = index < end
        frame = tl.load(frames_ptr + index, mask=held, other=0).to(tl.int64)
        seen = held & (slot < CODE_ROWS)
        if WINDOW != 0:
            start = tl.load(starts_ptr + index, mask=held, other=0)
            near = _in_window(start + slot, position, WINDOW, SINKS)
        else:
            start, near = slot, seen
        if PRECISION == BF16:
            largest, total, acc, bias = attend_bf16(
                q, pool16_ptr, frame, slot, held, (seen & near)[None, :], head, d, tile_unit, scale_log2, largest, total,
                acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, SOFT_CAP, False, NATIVE,
            )  # fmt: skip
        else:
            half_q = half_query(q)
            base = frame * FRAME_BYTES + tile
            k, v = load_codes(pool8_ptr, base, slot, held, d, KV_HEADS, HEAD_DIM, TILE_BYTES, WIDTH, False)
            if PRECISION == INT8 or PRECISION == INT4:
                one = tl.load(frames_ptr + first).to(tl.int64) * (FRAME_BYTES // 2) + tile // 2
                k_mul, k_add = key_scales(pool16_ptr, one, d, CODE_ROWS, HEAD_DIM, PRECISION)
                v_base = base // 2 + KV_HEADS * (TILE_BYTES // 2)
                v_mul, v_add = value_scales(pool16_ptr, v_base, slot, seen, CODE_ROWS, PER_ROW, WIDTH, PRECISION)
                k_scale = tl.zeros_like(v_mul) + scale_log2
            else:
                scales = pool32_ptr + frame * (FRAME_BYTES // 4) + scale_unit.to(tl.int64) + head
                k_scale = tl.load(scales, mask=held, other=0.0) * scale_log2
                v_mul = tl.load(scales + KV_HEADS, mask=held, other=0.0)
                k_mul, k_add, v_add = q, q, tl.zeros_like(v_mul)
            largest, total, acc, bias = attend_half(
                half_q, half_keys(k, k_mul, k_add, False, PRECISION, NATIVE), codes_to_half(v, False, PRECISION, NATIVE),
                k_scale, v_mul, v_add, (seen & near)[None, :], largest, total, acc, bias, SOFT_CAP, False, PRECISION,
            )  # fmt: skip
            if PRECISION == INT4:
                v_mul, v_add = value_scales(
                    pool16_ptr, v_base, slot + CODE_ROWS, seen, CODE_ROWS, PER_ROW, WIDTH, PRECISION
                )
                if WINDOW != 0:
                    near = _in_window(start + CODE_ROWS + slot, position, WINDOW, SINKS)
                largest, total, acc, bias = attend_half(
                    half_q, half_keys(k, k_mul, k_add, True, PRECISION, NATIVE), codes_to_half(v, True, PRECISION, NATIVE),
                    k_scale, v_mul, v_add, (seen & near)[None, :], largest, total, acc, bias, SOFT_CAP, False, PRECISION,
                )  # fmt: skip

    # -- open frames --
    if HAS_OPEN:
        length = tl.where(DIRECT or split == NUM_SPLITS, open_length, 0)
        columns = tl.arange(0, 32)
        for first in tl.range(0, length, 32, num_stages=1):
            token = first + columns
            held = token < length
            frame = tl.load(open_frames_ptr + sequence * open_width + token // BLOCK_SIZE, mask=held, other=0)
            near = held & _in_window(position - open_length + 1 + token, position, WINDOW, SINKS)
            largest, total, acc, bias = attend_bf16(
                q, pool16_ptr, frame.to(tl.int64), token % BLOCK_SIZE, held, near[None, :], head, d, tile_unit,
                scale_log2, largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, SOFT_CAP, False, NATIVE,
            )  # fmt: skip

    acc += bias[:, None]
    if DIRECT:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out_ptr + q_row[:, None] * HEAD_DIM + d[None, :], cast(out, out_ptr.dtype.element_ty, NATIVE), mask=within
        )
    else:
        part = q_row * num_parts + first_part + split
        tl.store(part_ptr + part[:, None] * HEAD_DIM + d[None, :], acc, mask=within)
        tl.store(stat_ptr + part * 2, largest, mask=row < GROUP)
        tl.store(stat_ptr + part * 2 + 1, total, mask=row < GROUP)


@triton.jit
def combine_kernel(
    part_ptr, stat_ptr, out_ptr, num_parts, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Merge the partial results of one row; a part that saw nothing has total 0 and does not count."""
    row = tl.program_id(0).to(tl.int64)
    part, d = tl.arange(0, PARTS), tl.arange(0, BLOCK_D)
    stats = stat_ptr + (row * num_parts + part) * 2
    largest = tl.load(stats, mask=part < num_parts, other=float("-inf"))
    total = tl.load(stats + 1, mask=part < num_parts, other=0.0)
    top = tl.max(largest, 0)
    factor = tl.where(total == 0.0, 0.0, tl.exp2(largest - tl.where(top == float("-inf"), 0.0, top)))
    held = (part < num_parts)[:, None] & (d < HEAD_DIM)[None, :]
    acc = tl.load(part_ptr + (row * num_parts + part)[:, None] * HEAD_DIM + d[None, :], mask=held, other=0.0)
    total = tl.sum(total * factor, 0)
    out = tl.sum(acc * factor[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HEAD_DIM + d, cast(out, out_ptr.dtype.element_ty, NATIVE), mask=d < HEAD_DIM)

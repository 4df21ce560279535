"""Split-KV flash decoding over frames, in Triton.

One program holds the query heads of one KV head (rows), walks over a share of the sealed frames of one sequence, and
leaves an unnormalised result with its maximum and sum; one more program per (sequence, KV head) does the same for the
open frames; `combine_kernel` merges them. With a single split, both loops run in one program,
which writes the result itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import (
    BF16,
    ROW_MASK,
    TAIL_MASK,
    attend_bf16,
    attend_frames,
    cast,
    half_query,
    in_reach,
)

OPEN_TOKENS = tl.constexpr(32)

# One compiled kernel serves all layers, table widths and numbers of splits.
_RUNTIME = ["tile_unit", "scale_unit", "table_width", "open_width", "num_splits", "first_part", "num_parts"]


@triton.jit(do_not_specialize=_RUNTIME)
def decode_kernel(
    q_ptr, pool8_ptr, pool16_ptr, pool32_ptr, frames_ptr, starts_ptr, counts_ptr,
    open_frames_ptr, open_starts_ptr, open_lengths_ptr, out_ptr, part_ptr, stat_ptr,
    scale_log2, tile_unit, scale_unit, table_width, open_width, num_splits, first_part, num_parts,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    CODE_ROWS: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr, FRAMES: tl.constexpr,
    DIRECT: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    split = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    within = (row < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_row = (sequence * KV_HEADS + head) * GROUP + row
    q = tl.load(q_ptr + q_row[:, None] * HEAD_DIM + d[None, :], mask=within, other=0.0)
    open_start, open_length = tl.load(open_starts_ptr + sequence), tl.load(open_lengths_ptr + sequence)
    position = tl.zeros((ROWS,), tl.int32) + open_start + open_length - 1
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total, bias = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)

    # -- sealed frames: this program's share, empty for the program of the open frames --
    count = tl.load(counts_ptr + sequence)
    share = tl.cdiv(tl.cdiv(count, num_splits), FRAMES) * FRAMES
    begin = tl.minimum(split * share, count)
    end = tl.minimum(begin + share, count)
    if PRECISION == BF16:
        sealed_q = q
    else:
        sealed_q = half_query(q)
    MASKS: tl.constexpr = TAIL_MASK if WINDOW == 0 else ROW_MASK
    largest, total, acc, bias = attend_frames(
        begin, end, sealed_q, position, position + 1, pool8_ptr, pool16_ptr, pool32_ptr,
        frames_ptr + sequence * table_width, starts_ptr + sequence * table_width, head, d, tile_unit, scale_unit,
        scale_log2, largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, WIDTH, CODE_ROWS, PER_ROW,
        PRECISION, FRAMES, MASKS, WINDOW, SINKS, SOFT_CAP, STAGES, NATIVE,
    )  # fmt: skip

    # -- open frames: the only program, or the one after the shares of the first precision --
    length = tl.where(DIRECT or split == num_splits, open_length, 0)
    for first in tl.range(0, length, OPEN_TOKENS, num_stages=1):
        token = first + tl.arange(0, OPEN_TOKENS)
        held = token < length
        frame = tl.load(open_frames_ptr + sequence * open_width + token // BLOCK_SIZE, mask=held, other=0)
        near = held[None, :] & in_reach(open_start + token, position, WINDOW, SINKS)
        largest, total, acc, bias = attend_bf16(
            q, pool16_ptr, frame.to(tl.int64), token % BLOCK_SIZE, held, near, head, d, tile_unit, scale_log2,
            largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, SOFT_CAP, False, NATIVE,
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


@triton.jit(do_not_specialize=["num_parts"])
def combine_kernel(
    part_ptr, stat_ptr, out_ptr, num_parts, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PARTS: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Merge the partial results of one row, PARTS at a time; a part that saw nothing has total 0 and does not count."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    top, total = float("-inf"), 0.0
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for first in tl.range(0, num_parts, PARTS, num_stages=1):
        part = first + tl.arange(0, PARTS)
        stats = stat_ptr + (row * num_parts + part) * 2
        largest = tl.load(stats, mask=part < num_parts, other=float("-inf"))
        share = tl.load(stats + 1, mask=part < num_parts, other=0.0)
        held = (part < num_parts)[:, None] & (d < HEAD_DIM)[None, :]
        x = tl.load(part_ptr + (row * num_parts + part)[:, None] * HEAD_DIM + d[None, :], mask=held, other=0.0)
        new = tl.maximum(top, tl.max(largest, 0))
        safe = tl.where(new == float("-inf"), 0.0, new)
        factor = tl.where(share == 0.0, 0.0, tl.exp2(largest - safe))
        before = tl.exp2(top - safe)
        acc = acc * before + tl.sum(x * factor[:, None], 0)
        total = total * before + tl.sum(share * factor, 0)
        top = new
    out = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * HEAD_DIM + d, cast(out, out_ptr.dtype.element_ty, NATIVE), mask=d < HEAD_DIM)

"""Prefill attention over frames, in Triton: tiles of query rows against sealed frames and the raw tokens of a group.

A tile packs ROWS = tokens x (query heads of one KV head). Its keys come in four ranges: sealed frames that every row
sees (no mask), sealed frames that only its later rows see, open frames of the group that the chunk continues, and raw
tokens of the chunk itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pagefleet_kernels.device_code import (
    BF16,
    NO_MASK,
    ROW_MASK,
    attend_bf16,
    attend_frames,
    bf16_update,
    cast,
    dot_bf16,
    half_query,
    in_reach,
)


@triton.jit
def _frames_before(starts_ptr, count, group_start):
    """How many of a table's frames begin before `group_start`; their starts ascend."""
    found = 0
    for first in range(0, count, 256):
        index = first + tl.arange(0, 256)
        start = tl.load(starts_ptr + index, mask=index < count, other=2147483647)
        found += tl.sum((start < group_start).to(tl.int32), 0)
    return found


@triton.jit
def _chunk_of(tile_id, offsets_ptr, num_sequences, TOKENS: tl.constexpr):
    """The sequence of a tile, its chunk's first and last row, and the tile's first row (beyond the end: no tile).

    Tiles of sequence s begin at offsets[s] // TOKENS + s, which leaves room for a partial tile each.
    """
    found = 0
    for first in range(0, num_sequences, 128):
        s = first + tl.arange(0, 128)
        offset = tl.load(offsets_ptr + s, mask=s < num_sequences, other=0)
        found += tl.sum(((offset // TOKENS + s <= tile_id) & (s < num_sequences)).to(tl.int32), 0)
    sequence = found - 1
    begin = tl.load(offsets_ptr + sequence)
    end = tl.load(offsets_ptr + sequence + 1)
    return sequence, begin, end, begin + (tile_id - begin // TOKENS - sequence) * TOKENS


_RUNTIME = ["tile_unit", "scale_unit", "table_width", "open_width", "num_sequences", "part", "num_parts"]


@triton.jit(do_not_specialize=_RUNTIME)
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, offsets_ptr, positions_ptr, group_starts_ptr, pool8_ptr, pool16_ptr, pool32_ptr,
    frames_ptr, starts_ptr, counts_ptr, open_frames_ptr, open_starts_ptr, open_lengths_ptr, out_ptr, part_ptr, stat_ptr,
    scale_log2, tile_unit, scale_unit, table_width, open_width, num_sequences, part, num_parts,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    FRAME_BYTES: tl.constexpr, TILE_BYTES: tl.constexpr, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
    CODE_ROWS: tl.constexpr, PER_ROW: tl.constexpr, PRECISION: tl.constexpr, FRAMES: tl.constexpr,
    DIRECT: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
    SOFT_CAP: tl.constexpr, RAW: tl.constexpr, STAGES: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    TOKENS: tl.constexpr = ROWS // GROUP
    head = tl.program_id(0)
    tile_id = tl.num_programs(1) - 1 - tl.program_id(1)  # long ones first: later tiles of a chunk see more
    sequence, begin, end, token0 = _chunk_of(tile_id, offsets_ptr, num_sequences, TOKENS)
    if token0 >= end:
        return
    row, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    token = token0 + row // GROUP
    valid = (row < TOKENS * GROUP) & (token < end)
    last = tl.minimum(token0 + TOKENS, end) - 1
    q_row = token.to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + row % GROUP
    within = valid[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_row[:, None] * HEAD_DIM + d[None, :], mask=within, other=0.0)
    position = tl.load(positions_ptr + token, mask=valid, other=-1)
    group_start = tl.load(group_starts_ptr + token, mask=valid, other=-1)
    first_group = tl.load(group_starts_ptr + token0)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total, bias = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)

    # -- sealed frames --
    frames_ptr += sequence.to(tl.int64) * table_width
    starts_ptr += sequence.to(tl.int64) * table_width
    count = tl.load(counts_ptr + sequence)
    all_see = _frames_before(starts_ptr, count, first_group) // FRAMES * FRAMES
    some_see = _frames_before(starts_ptr, count, tl.load(group_starts_ptr + last))
    if WINDOW != 0:
        all_see = some_see * 0
    if PRECISION == BF16:
        sealed_q = q
    else:
        sealed_q = half_query(q)
    largest, total, acc, bias = attend_frames(
        0, all_see, sealed_q, position, group_start, pool8_ptr, pool16_ptr, pool32_ptr, frames_ptr, starts_ptr, head, d,
        tile_unit, scale_unit, scale_log2, largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES,
        WIDTH, CODE_ROWS, PER_ROW, PRECISION, FRAMES, NO_MASK, WINDOW, SINKS, SOFT_CAP, STAGES, NATIVE,
    )  # fmt: skip
    largest, total, acc, bias = attend_frames(
        all_see, some_see, sealed_q, position, group_start, pool8_ptr, pool16_ptr, pool32_ptr, frames_ptr, starts_ptr,
        head, d, tile_unit, scale_unit, scale_log2, largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES,
        TILE_BYTES, WIDTH, CODE_ROWS, PER_ROW, PRECISION, FRAMES, ROW_MASK, WINDOW, SINKS, SOFT_CAP, 1, NATIVE,
    )  # fmt: skip

    # -- open frames, with the first precision: tokens of earlier chunks in the group that this chunk continues --
    open_start = tl.load(open_starts_ptr + sequence)
    open_length = tl.where((first_group == open_start) & (part == 0), tl.load(open_lengths_ptr + sequence), 0)
    column = tl.arange(0, RAW)
    for first in tl.range(0, open_length, RAW, num_stages=1):
        slot = first + column
        held = slot < open_length
        frame = tl.load(open_frames_ptr + sequence.to(tl.int64) * open_width + slot // BLOCK_SIZE, mask=held, other=0)
        near = held[None, :] & (group_start == open_start)[:, None]
        near = near & in_reach(open_start + slot, position, WINDOW, SINKS)
        largest, total, acc, bias = attend_bf16(
            q, pool16_ptr, frame.to(tl.int64), slot % BLOCK_SIZE, held, near, head, d, tile_unit, scale_log2,
            largest, total, acc, bias, KV_HEADS, HEAD_DIM, FRAME_BYTES, TILE_BYTES, SOFT_CAP, False, NATIVE,
        )  # fmt: skip
    # -- the chunk's own tokens, with the first precision --
    own_end = tl.where(part == 0, last + 1, 0)
    chunk_start = tl.load(positions_ptr + begin)
    for first in tl.range(begin + tl.maximum(first_group - chunk_start, 0), own_end, RAW, num_stages=1):
        key = first + column
        held = key <= last
        at = (key.to(tl.int64) * KV_HEADS + head) * HEAD_DIM
        k = tl.load(k_ptr + at[None, :] + d[:, None], mask=held[None, :] & (d < HEAD_DIM)[:, None], other=0.0)
        v = tl.load(v_ptr + at[:, None] + d[None, :], mask=held[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        near = held[None, :] & ((chunk_start + key - begin)[None, :] >= group_start[:, None])
        near = near & in_reach(chunk_start + key - begin, position, WINDOW, SINKS)
        scores = dot_bf16(q, k.to(tl.bfloat16), NATIVE)
        largest, total, acc, bias = bf16_update(
            scores, v.to(tl.bfloat16), near, scale_log2, largest, total, acc, bias, SOFT_CAP, False, NATIVE
        )

    acc += bias[:, None]
    if DIRECT:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out_ptr + q_row[:, None] * HEAD_DIM + d[None, :], cast(out, out_ptr.dtype.element_ty, NATIVE), mask=within
        )
    else:
        at = q_row * num_parts + part
        tl.store(part_ptr + at[:, None] * HEAD_DIM + d[None, :], acc, mask=within)
        tl.store(stat_ptr + at * 2, largest, mask=valid)
        tl.store(stat_ptr + at * 2 + 1, total, mask=valid)

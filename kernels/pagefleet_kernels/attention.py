"""Softmax attention over gathered keys in plain torch: what `paged_decode` and `paged_prefill` are specified by.

Everything is fp32. Two forms: `attend` for speed, and `attend_group`, whose bits depend neither on the batch nor on how
the tokens were cut into steps: every product has one shape, and partial results are added in the order of positions.
Legend: S sequences, R queries, A query heads, H KV heads, N keys, F frames, T tokens of a frame, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from pagefleet_kernels.tables import Masking

NOWHERE: Final = 2**31 - 1
"""Position of a key that does not exist; no query sees it."""

ROW_TILE: Final = 32
"""Rows of one product in `attend_group`; measured on CPUs, fewer than 8 rows take another path with other bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBlock:
    """Keys and values of one source. Entries that no query may see hold zeros, never garbage."""

    keys: torch.Tensor
    """fp32 [S, H, N, D]"""
    values: torch.Tensor
    """fp32 [S, H, N, D]"""
    positions: torch.Tensor
    """int [S, N]; `NOWHERE` for a key that does not exist"""


def in_reach(queries: torch.Tensor, keys: torch.Tensor, masking: Masking) -> torch.Tensor:
    """Causality, window and sinks: bool [..., R, N] from positions [..., R] and [..., N]."""
    query, key = queries[..., :, None], keys[..., None, :]
    visible = key <= query
    if masking.window is not None:
        visible &= (key > query - masking.window) | (key < masking.sinks)
    return visible


def attend(
    queries: torch.Tensor,
    blocks: Sequence[tuple[KeyBlock, torch.Tensor]],
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """One softmax over several blocks, each with its visibility [S, R, N].

    queries: [S, R, A, D]. Returns fp32 [S, R, A, D]; a query that sees nothing gets zeros.
    """
    num_sequences, num_queries, num_heads, head_dim = queries.shape
    num_kv_heads = blocks[0][0].keys.shape[1]
    rows = _rows_by_kv_head(queries, num_kv_heads)
    scores = []
    for block, visible in blocks:
        by_row = visible.repeat_interleave(num_heads // num_kv_heads, dim=1)[:, None]
        scores.append(_scores(rows, block.keys, scale, soft_cap).masked_fill_(~by_row, -torch.inf))
    weights = torch.cat(scores, dim=-1)
    weights = weights.sub_(_safe_max(weights.amax(-1, keepdim=True))).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.zeros_like(rows)
    start = 0
    for block, _ in blocks:
        end = start + block.keys.shape[2]
        out += weights[..., start:end] @ block.values
        start = end
    out /= total.masked_fill_(total == 0, 1.0)
    by_token = out.view(num_sequences, num_kv_heads, num_queries, num_heads // num_kv_heads, head_dim).transpose(1, 2)
    return by_token.reshape(num_sequences, num_queries, num_heads, head_dim)


def _rows_by_kv_head(queries: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[S, R, A, D] -> fp32 [S, H, R * (A / H), D], the rows that share a KV head side by side."""
    num_sequences, num_queries, num_heads, head_dim = queries.shape
    group = num_heads // num_kv_heads
    by_head = queries.float().reshape(num_sequences, num_queries, num_kv_heads, group, head_dim)
    return by_head.transpose(1, 2).flatten(2, 3)


def _scores(rows: torch.Tensor, keys: torch.Tensor, scale: float, soft_cap: float | None) -> torch.Tensor:
    scores = (rows @ keys.transpose(-1, -2)).mul_(scale)
    return scores if soft_cap is None else scores.div_(soft_cap).tanh_().mul_(soft_cap)


def _safe_max(largest: torch.Tensor) -> torch.Tensor:
    """0 where nothing is visible, so that exp(-inf - max) is 0 and not NaN."""
    return largest.masked_fill(largest == -torch.inf, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRun:
    """Sealed frames of one sequence in one precision, for `attend_group`."""

    keys: torch.Tensor
    """fp32 [F, H, T, D]"""
    values: torch.Tensor
    """fp32 [F, H, T, D]"""
    positions: torch.Tensor
    """int [F, T]"""


def attend_group(
    queries: torch.Tensor,
    positions: torch.Tensor,
    sealed: Sequence[FrameRun],
    own: FrameRun,
    scale: float,
    masking: Masking,
) -> torch.Tensor:
    """Attention of queries of one group, [R, A, D] at `positions` [R], over `sealed` frames and `own` group (F = 1).

    Returns fp32 [R, A, D]. A row's bits depend on its own query, on the keys it sees and on the frames they lie in, on
    nothing else.
    """
    num_queries, num_heads, head_dim = queries.shape
    num_kv_heads = own.keys.shape[1]
    group = num_heads // num_kv_heads
    rows = _rows_by_kv_head(queries[None], num_kv_heads)[0]
    row_positions = positions.repeat_interleave(group)
    out = torch.empty_like(rows)
    for start in range(0, rows.shape[1], ROW_TILE):
        count = min(ROW_TILE, rows.shape[1] - start)
        tile = rows.new_zeros((num_kv_heads, ROW_TILE, head_dim))
        tile[:, :count] = rows[:, start : start + count]
        at = row_positions.new_full((ROW_TILE,), -1)
        at[:count] = row_positions[start : start + count]
        out[:, start : start + count] = _attend_tile(tile, at, [*sealed, own], scale, masking)[:, :count]
    by_token = out.view(num_kv_heads, num_queries, group, head_dim).transpose(0, 1)
    return by_token.reshape(num_queries, num_heads, head_dim)


def _attend_tile(
    rows: torch.Tensor, positions: torch.Tensor, runs: Sequence[FrameRun], scale: float, masking: Masking
) -> torch.Tensor:
    """[H, ROW_TILE, D] -> [H, ROW_TILE, D]; products per frame, sums in the order of positions."""
    scores = []
    for run in runs:
        visible = in_reach(positions.expand(run.positions.shape[0], -1), run.positions, masking)
        products = _scores(rows.expand(run.keys.shape[0], -1, -1, -1), run.keys, scale, masking.soft_cap)
        scores.append(products.masked_fill_(~visible[:, None], -torch.inf))
    largest = _safe_max(torch.stack([s.amax(-1).amax(0) for s in scores if s.shape[0]]).amax(0))[..., None]
    partial: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for run, products in zip(runs, scores, strict=True):
        weights = products.sub_(largest).exp_()
        sums, outs = weights.sum(-1, keepdim=True), weights @ run.values
        partial += zip(run.positions[:, 0].tolist(), sums, outs, strict=True)
    partial.sort(key=lambda entry: entry[0])
    total, out = torch.zeros_like(largest), torch.zeros_like(rows)
    for _, share, part in partial:
        total += share
        out += part
    return out / total.masked_fill(total == 0, 1.0)

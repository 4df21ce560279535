"""Paged attention of one step on a CPU: store and seal, then one fused attention call per request.

A query sees sealed groups before its own in their precision, and its own group raw (`scheduling.output`). Raw values of
a group that this step completes are read before its frame is overwritten.

Shapes: T rows of the step, Q rows of one request, N keys it may see, H query heads, G KV heads, R = H / G, K head
dimension; a leading 2 is keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.batch import Batch, GroupRows, RequestRows
from pagefleet_engine.runtime.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class RawRows:
    """Raw keys and values `[2, G, n + Q, K]` of the group that the first row belongs to, then of the step's rows."""

    kv: Tensor
    num_open: int
    """n: tokens that earlier steps wrote."""

    def of(self, group: GroupRows) -> Tensor:
        """`[2, G, num_written + num_new, K]` of one group of the step."""
        start = self.num_open + group.first - group.num_written
        return self.kv[:, :, start : start + group.num_written + group.num_new]


class StepAttention:
    """`models.llama.AttendStep` over one batch and the pool. Made anew for every step."""

    def __init__(self, cache: KvCache, batch: Batch) -> None:
        self._cache = cache
        self._batch = batch
        self._writes_all = batch.write_tokens.numel() == batch.token_ids_T.numel()
        self._masks = [visibility_mask(rows) for rows in batch.requests]

    def __call__(self, layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
        """The attention output `[T, H, K]`, with this step's keys and values stored on the way."""
        raw = [self._raw_rows(layer, rows, k_TGK, v_TGK) for rows in self._batch.requests]
        self._store(layer, k_TGK, v_TGK)
        seal_groups(self._cache, layer, self._batch.requests, raw)
        out_THK = torch.empty_like(q_THK)
        for index, rows in enumerate(self._batch.requests):
            out_THK[rows.rows] = self._attend(layer, index, raw[index], q_THK[rows.rows])
        return out_THK

    def _attend(self, layer: int, index: int, raw: RawRows | None, q_QHK: Tensor) -> Tensor:
        """Attention output `[Q, H, K]` of one request's rows."""
        rows = self._batch.requests[index]
        keys_GNK, values_GNK = self._visible(layer, rows, raw, q_QHK.dtype)
        return attend(q_QHK, keys_GNK, values_GNK, self._masks[index])

    def _raw_rows(self, layer: int, rows: RequestRows, k_TGK: Tensor, v_TGK: Tensor) -> RawRows | None:
        """None where everything is raw and will be read from the frames."""
        if rows.raw_frames is not None:
            return None
        return read_raw_rows(self._cache, layer, rows, k_TGK, v_TGK)

    def _store(self, layer: int, k_TGK: Tensor, v_TGK: Tensor) -> None:
        batch = self._batch
        if not self._writes_all:
            k_TGK, v_TGK = k_TGK[batch.write_tokens], v_TGK[batch.write_tokens]
        self._cache.write(layer, batch.write_frames, batch.write_rows, k_TGK, v_TGK)

    def _visible(self, layer: int, rows: RequestRows, raw: RawRows | None, dtype: torch.dtype) -> Tensor:
        """Keys and values `[2, G, N, K]` in the order that `visibility_mask` describes."""
        if rows.raw_frames is not None:
            return self._cache.gather(layer, rows.raw_frames)[:, :, : rows.end].to(dtype)
        assert raw is not None
        sealed = [self._cache.read(layer, s.precision, s.frames).flatten(2, 3) for s in rows.segments]
        sealed += [self._cache.read(layer, p, frames).flatten(2, 3) for p, frames in sealed_now(rows)]
        return torch.cat([part.to(dtype) for part in (*sealed, raw.kv)], dim=2)


def read_raw_rows(cache: KvCache, layer: int, rows: RequestRows, k_TGK: Tensor, v_TGK: Tensor) -> RawRows:
    """Gather the open part of a request's first group and append the step's own rows."""
    fresh = torch.stack((k_TGK[rows.rows], v_TGK[rows.rows])).transpose(1, 2).to(cache.raw_dtype)
    if not rows.num_open:
        return RawRows(fresh, 0)
    begun = cache.gather(layer, rows.open_frames)[:, :, : rows.num_open]
    return RawRows(torch.cat((begun, fresh), dim=2), rows.num_open)


def seal_groups(cache: KvCache, layer: int, requests: Sequence[RequestRows], raw: Sequence[RawRows | None]) -> None:
    """Quantise the groups that the step completes, all of one precision in one call."""
    targets: dict[Precision, list[int]] = {}
    groups: dict[Precision, list[Tensor]] = {}
    for rows, values in zip(requests, raw, strict=True):
        for group in rows.groups:
            if group.quantises and values is not None:
                targets.setdefault(group.precision, []).append(group.frames[0])
                groups.setdefault(group.precision, []).append(values.of(group).transpose(1, 2))
    for precision, frames in targets.items():
        cache.seal(layer, precision, torch.tensor(frames), torch.stack(groups[precision], dim=1))


def sealed_now(rows: RequestRows) -> Iterator[tuple[Precision, Tensor]]:
    """Groups that this step completes and that later rows of it see sealed."""
    for group in rows.groups[:-1]:
        yield group.precision, torch.tensor(group.frames[:1])


def attend(q_QHK: Tensor, keys_GNK: Tensor, values_GNK: Tensor, mask_QN: Tensor | None) -> Tensor:
    """Softmax attention `[Q, H, K]`, scaled by `1 / sqrt(K)`; the R heads of a group share its keys unexpanded.

    `mask_QN` is true where a query may look; None lets every query see every key.
    """
    num_rows, num_heads, head_dim = q_QHK.shape
    groups = keys_GNK.shape[0]
    q_GRQK = q_QHK.reshape(num_rows, groups, -1, head_dim).permute(1, 2, 0, 3)
    q_1GXK = q_GRQK.reshape(1, groups, -1, head_dim)
    mask = None if mask_QN is None else mask_QN.repeat(num_heads // groups, 1)
    out_1GXK = F.scaled_dot_product_attention(q_1GXK, keys_GNK.unsqueeze(0), values_GNK.unsqueeze(0), mask)
    return out_1GXK.view(groups, -1, num_rows, head_dim).permute(2, 0, 1, 3).reshape(q_QHK.shape)


def visibility_mask(rows: RequestRows) -> Tensor | None:
    """`[Q, N]`, true where a row may look; None for a single row, which sees all there is.

    Raw requests: key n is position n. Others: the sealed groups of earlier steps, those of this step but its last,
    then the raw tokens from the first row's group on.
    """
    if rows.num_rows == 1:
        return None
    if rows.raw_frames is not None:
        return torch.ones(rows.num_rows, rows.end, dtype=torch.bool).tril(rows.start)
    opening = rows.groups[0].start
    now = [group.num_written + group.num_new for group in rows.groups[:-1]]
    mask = torch.zeros(rows.num_rows, opening + sum(now) + rows.end - opening, dtype=torch.bool)
    first_raw = opening + sum(now)
    for group in rows.groups:
        own = slice(group.first, group.first + group.num_new)
        mask[own, : group.start] = True
        begin, end = first_raw + group.start - opening, first_raw + rows.start - opening + own.stop
        mask[own, begin:end] = torch.ones(group.num_new, end - begin, dtype=torch.bool).tril(group.num_written)
    return mask

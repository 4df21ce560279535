"""Paged attention of one step on a CPU: gather a request's frames once per layer, then one fused attention call.

A query sees sealed groups before its own in their precision, and its own group raw (`scheduling.output`).

Shapes: T rows of the step, Q rows of one request, N keys it may see, H query heads, G KV heads, R = H / G, K head
dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pagefleet_engine.runtime.batch import Batch, RequestRows
from pagefleet_engine.runtime.kv_cache import KvCache


class StepAttention:
    """`models.llama.AttendStep` over one batch and the pool. Made anew for every step."""

    def __init__(self, cache: KvCache, batch: Batch) -> None:
        self._cache = cache
        self._batch = batch
        self._writes_all = batch.write_tokens.numel() == batch.token_ids_T.numel()
        self._masks = [_causal_mask(rows) for rows in batch.requests]

    def __call__(self, layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor) -> Tensor:
        """The attention output `[T, H, K]`, with this step's keys and values stored on the way."""
        self._store(layer, k_TGK, v_TGK)
        out_THK = torch.empty_like(q_THK)
        for rows, mask in zip(self._batch.requests, self._masks, strict=True):
            out_THK[rows.rows] = self._attend_raw(layer, rows, q_THK[rows.rows], mask)
        return out_THK

    def _store(self, layer: int, k_TGK: Tensor, v_TGK: Tensor) -> None:
        batch = self._batch
        if not self._writes_all:
            k_TGK, v_TGK = k_TGK[batch.write_tokens], v_TGK[batch.write_tokens]
        self._cache.write(layer, batch.write_frames, batch.write_rows, k_TGK, v_TGK)

    def _attend_raw(self, layer: int, rows: RequestRows, q_QHK: Tensor, mask: Tensor | None) -> Tensor:
        assert rows.raw_frames is not None
        keys_GNK, values_GNK = self._cache.gather(layer, rows.raw_frames)[:, :, : rows.end]
        return attend(q_QHK, keys_GNK, values_GNK, mask)


def attend(q_QHK: Tensor, keys_GNK: Tensor, values_GNK: Tensor, mask_QN: Tensor | None) -> Tensor:
    """Softmax attention `[Q, H, K]`, scaled by `1 / sqrt(K)`; the R heads of a group share its keys unexpanded.

    `mask_QN` is true where a query may look; None lets every query see every key.
    """
    num_rows, num_heads, head_dim = q_QHK.shape
    groups = keys_GNK.shape[0]
    q_GRQK = q_QHK.view(num_rows, groups, -1, head_dim).permute(1, 2, 0, 3)
    q_1GXK = q_GRQK.reshape(1, groups, -1, head_dim)
    mask = None if mask_QN is None else mask_QN.repeat(num_heads // groups, 1)
    out_1GXK = F.scaled_dot_product_attention(q_1GXK, keys_GNK.unsqueeze(0), values_GNK.unsqueeze(0), mask)
    return out_1GXK.view(groups, -1, num_rows, head_dim).permute(2, 0, 1, 3).reshape(q_QHK.shape)


def _causal_mask(rows: RequestRows) -> Tensor | None:
    """`[Q, N]`: the row at position p sees keys 0..p. A single row sees all of them."""
    if rows.num_rows == 1:
        return None
    return torch.ones(rows.num_rows, rows.end, dtype=torch.bool).tril(rows.start)

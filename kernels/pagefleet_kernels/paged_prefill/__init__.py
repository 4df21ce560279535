"""Attention of a batch of prompt chunks over their prefixes, with the visibility rule of mixed-precision frames.

A query at position p sees the sealed (dequantised) values of every group completed before its own, and raw BF16 values
inside its own group. So what it sees does not depend on how the prompt was cut into chunks. The layer's groups that
this chunk completes must be sealed before the call.
Legend: N tokens of all chunks, S sequences, A query heads, H KV heads, D head dim.
"""

from __future__ import annotations

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.paged_decode import check_heads
from pagefleet_kernels.paged_prefill import reference
from pagefleet_kernels.pool import check_layer, check_pool, check_shape
from pagefleet_kernels.tables import ChunkTable, Masking


def paged_prefill(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    chunks: ChunkTable,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    *,
    scale: float,
    masking: Masking | None = None,
    batch_invariant: bool = False,
    impl: Impl = "auto",
) -> torch.Tensor:
    """queries [N, A, D] -> [N, A, D] in the dtype of the queries.

    keys, values: [N, H, D], the chunks' own, rounded to bf16 here. With `batch_invariant` the bits are those of
    `paged_decode` for the same token. Raises ValueError for a tensor of another shape.
    """
    check_pool(pool, layout)
    check_layer(layout, layer)
    check_heads(queries, layout)
    num_tokens = queries.shape[0]
    check_shape("keys", keys, (num_tokens, layout.num_kv_heads, layout.head_dim))
    check_shape("values", values, (num_tokens, layout.num_kv_heads, layout.head_dim))
    check_shape("positions", chunks.positions, (num_tokens,))
    masking = masking or Masking()
    if use_triton(impl, queries) and not batch_invariant:
        from pagefleet_kernels.paged_prefill import launcher

        return launcher.paged_prefill(queries, keys, values, chunks, pool, layout, layer, scale, masking)
    return reference.paged_prefill(queries, keys, values, chunks, pool, layout, layer, scale, masking, batch_invariant)

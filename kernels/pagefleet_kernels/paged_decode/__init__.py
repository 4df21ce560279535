"""Attention of one new token per sequence over its frames: sealed ones in their precision, open ones in BF16.

Numerics contract: the result is softmax attention in fp32 over the dequantised keys and values (`codec`). Triton rounds
probabilities to the 16-bit type of the product and accumulates in fp32. Batch-invariant attention always runs the
reference, on a GPU too: its bits are the same in prefill and decode.
Legend: S sequences, A query heads, H KV heads (A a multiple of H), D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.dispatch import Impl, use_triton
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.paged_decode import reference
from pagefleet_kernels.pool import check_layer, check_pool, check_shape
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable


def paged_decode(
    queries: torch.Tensor,
    pool: torch.Tensor,
    layout: FrameLayout,
    layer: int,
    sealed: Sequence[FrameTable],
    open_table: OpenTable,
    *,
    scale: float,
    masking: Masking | None = None,
    batch_invariant: bool = False,
    impl: Impl = "auto",
) -> torch.Tensor:
    """queries [S, A, D] -> [S, A, D] in the dtype of the queries.

    The token at hand must already be in its open frame: a query's position is `open_table.starts + lengths - 1`. A
    sequence without any token (a padding row) reads nothing and gets zeros. With `batch_invariant` the bits of a row do
    not depend on the other sequences. Raises ValueError for a tensor of another shape.
    """
    check_pool(pool, layout)
    check_layer(layout, layer)
    check_heads(queries, layout)
    check_shape("open_table", open_table.frames, (queries.shape[0], -1))
    for table in sealed:
        check_shape("sealed", table.frames, (queries.shape[0], -1))
    masking = masking or Masking()
    if use_triton(impl, queries) and not batch_invariant:
        from pagefleet_kernels.paged_decode import launcher

        return launcher.paged_decode(queries, pool, layout, layer, sealed, open_table, scale, masking)
    return reference.paged_decode(queries, pool, layout, layer, sealed, open_table, scale, masking, batch_invariant)


def check_heads(queries: torch.Tensor, layout: FrameLayout) -> None:
    """Raise ValueError unless queries are [n, A, D] with A a multiple of the KV heads."""
    check_shape("queries", queries, (-1, -1, layout.head_dim))
    if queries.shape[1] % layout.num_kv_heads:
        heads = f"{queries.shape[1]} heads over {layout.num_kv_heads} KV heads"
        raise ValueError(f"queries {tuple(queries.shape)}: {heads} is no whole ratio")

"""Paged attention of one step through the kernels' ops, all requests at once; see `paged_batch` for the order of rows.

Per layer: read what was written raw before, write this step's rows raw, seal the groups that chunks complete, attend.
Groups that decodes complete are sealed once for all layers, after the last one.

Shapes: T rows, E extended rows of chunks, H query heads, G KV heads, K head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pagefleet_engine.runtime.kv_cache import KvCache, kernel_precision
from pagefleet_engine.runtime.paged_batch import DecodeSeal
from pagefleet_engine.runtime.step_tensors import ChunkTensors, StepTensors
from pagefleet_kernels.paged_decode import paged_decode
from pagefleet_kernels.paged_prefill import paged_prefill
from pagefleet_kernels.seal_frames import seal_frames, seal_open_frames
from pagefleet_kernels.write_open import write_open


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedOps:
    """How the kernels' ops are called: by which implementation, and whether a row's bits may depend on its batch."""

    impl: Literal["triton", "reference"]
    batch_invariant: bool = False


class PagedAttention:
    """`models.llama.AttendStep` over one step's tensors and the pool."""

    def __init__(self, cache: KvCache, step: StepTensors, ops: PagedOps) -> None:
        self._cache = cache
        self._step = step
        self._ops = ops

    def __call__(self, layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
        """The attention output `[T, H, K]`, with this step's keys and values stored on the way."""
        step, first_chunk = self._step, self._step.num_decodes
        chunks = step.chunks
        if chunks is not None:
            k_EGK, v_EGK = self._extended(layer, chunks, k_TGK[first_chunk:], v_TGK[first_chunk:])
        write_open(
            self._cache.pool, self._cache.layout, layer, step.write_frames_T, step.write_slots_T, k_TGK, v_TGK,
            impl=self._ops.impl,
        )  # fmt: skip
        parts = []
        if step.decodes is not None:
            parts.append(self._decode(layer, q_THK[:first_chunk]))
        if chunks is not None:
            self._seal(layer, chunks, k_EGK, v_EGK)
            parts.append(self._prefill(layer, chunks, q_THK[first_chunk:], k_EGK, v_EGK))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _extended(self, layer: int, chunks: ChunkTensors, k_RGK: Tensor, v_RGK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the chunks' rows, each chunk's open tokens before its own."""
        if not chunks.open_frames.numel():
            return k_RGK, v_RGK
        begun_O2GK = self._cache.raw_tokens(layer, chunks.open_frames, chunks.open_slots)
        k, v = (torch.cat((begun_O2GK[:, part], x.to(begun_O2GK.dtype))) for part, x in enumerate((k_RGK, v_RGK)))
        return k.index_select(0, chunks.source), v.index_select(0, chunks.source)

    def _seal(self, layer: int, chunks: ChunkTensors, k_EGK: Tensor, v_EGK: Tensor) -> None:
        for seal in chunks.seals:
            groups = (seal.targets.shape[0], -1, *k_EGK.shape[1:])
            k, v = (x.index_select(0, seal.rows).view(groups) for x in (k_EGK, v_EGK))
            seal_frames(
                self._cache.pool, self._cache.layout, layer, kernel_precision(seal.precision), seal.targets, k, v,
                impl=self._ops.impl,
            )  # fmt: skip

    def _decode(self, layer: int, q_DHK: Tensor) -> Tensor:
        decodes = self._step.decodes
        assert decodes is not None
        return paged_decode(
            q_DHK, self._cache.pool, self._cache.layout, layer, decodes.sealed, decodes.open,
            scale=q_DHK.shape[-1] ** -0.5, batch_invariant=self._ops.batch_invariant, impl=self._ops.impl,
        )  # fmt: skip

    def _prefill(self, layer: int, chunks: ChunkTensors, q_RHK: Tensor, k_EGK: Tensor, v_EGK: Tensor) -> Tensor:
        """Open tokens have keys and values and no query: theirs are zeros, and what comes of them is dropped."""
        extended = bool(chunks.open_frames.numel())
        q_EHK = q_RHK
        if extended:
            q_EHK = q_RHK.new_zeros((chunks.table.positions.shape[0], *q_RHK.shape[1:])).index_copy_(
                0, chunks.own.long(), q_RHK
            )
        out_EHK = paged_prefill(
            q_EHK, k_EGK, v_EGK, chunks.table, self._cache.pool, self._cache.layout, layer,
            scale=q_RHK.shape[-1] ** -0.5, batch_invariant=self._ops.batch_invariant, impl=self._ops.impl,
        )  # fmt: skip
        return out_EHK.index_select(0, chunks.own) if extended else out_EHK


def seal_decodes(cache: KvCache, seals: tuple[DecodeSeal, ...], ops: PagedOps) -> None:
    """Quantise the groups that decodes have completed, in place, all layers in one launch."""
    for seal in seals:
        frames = torch.tensor(seal.frames, dtype=torch.int32).to(cache.pool.device, non_blocking=True)
        layers = range(cache.layout.num_layers)
        seal_open_frames(cache.pool, cache.layout, layers, kernel_precision(seal.precision), frames, impl=ops.impl)

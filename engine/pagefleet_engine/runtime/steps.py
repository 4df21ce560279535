"""The two ways to lay a step out and run the model over it: request by request on a CPU, paged kernels elsewhere."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.attention import StepAttention
from pagefleet_engine.runtime.backend import Backend
from pagefleet_engine.runtime.batch import Batch, build_batch
from pagefleet_engine.runtime.buckets import Buckets
from pagefleet_engine.runtime.graphs import Capture, StepGraphs
from pagefleet_engine.runtime.invariant import InvariantAttention
from pagefleet_engine.runtime.kv_cache import KvCache
from pagefleet_engine.runtime.paged_attention import PagedAttention, PagedOps, seal_decodes
from pagefleet_engine.runtime.paged_batch import PagedBatch, build_paged_batch
from pagefleet_engine.runtime.sealed_tables import SealedTables
from pagefleet_engine.runtime.step_tensors import unpack
from pagefleet_engine.scheduling.output import ScheduleOutput

StepBatch = Batch | PagedBatch


class Steps(Protocol):
    """How steps are computed; chosen once, by the backend."""

    def plan(self, output: ScheduleOutput) -> StepBatch:
        """The batch of a step with requests; on rank 0 only."""
        ...

    def hidden(self, batch: StepBatch) -> Tensor:
        """Activations `[T, D]` of the batch's rows before the final norm; on every rank."""
        ...

    def close(self) -> None:
        """Let go of whatever refers to the process group of the ranks."""
        ...


class RequestSteps:
    """One fused attention call per request: fastest on a CPU."""

    def __init__(self, decoder: Decoder, cache: KvCache, *, batch_invariant: bool) -> None:
        self._decoder = decoder
        self._cache = cache
        self._attention = InvariantAttention if batch_invariant else StepAttention

    def plan(self, output: ScheduleOutput) -> Batch:
        return build_batch(output, self._cache.layout.block_size)

    def hidden(self, batch: StepBatch) -> Tensor:
        assert isinstance(batch, Batch)
        attention = self._attention(self._cache, batch)
        return self._decoder.hidden(batch.token_ids_T, batch.positions_T, attention)

    def close(self) -> None:
        """Nothing is kept."""


class PagedSteps:
    """All requests in one launch per op; steps that only decode run as graphs where the device can capture them."""

    def __init__(
        self, decoder: Decoder, cache: KvCache, backend: Backend, *, batch_invariant: bool, capture: Capture | None
    ) -> None:
        self._ops = PagedOps(impl=backend.impl, batch_invariant=batch_invariant)
        self._decoder = decoder
        self._cache = cache
        self._tables = SealedTables()
        self._graphs = None if capture is None else StepGraphs(capture)
        self._buckets = Buckets(enabled=capture is not None)

    def plan(self, output: ScheduleOutput) -> PagedBatch:
        return build_paged_batch(output, self._tables, self._cache.layout.block_size, self._buckets)

    def hidden(self, batch: StepBatch) -> Tensor:
        assert isinstance(batch, PagedBatch)
        graphs = self._graphs if batch.num_chunks == 0 else None
        hidden_TD = self._compute(batch) if graphs is None else graphs.run(batch, self._compute_at, self._cache.pool)
        seal_decodes(self._cache, batch.decode_seals, self._ops)
        return hidden_TD[: batch.num_rows] if batch.num_chunks == 0 else hidden_TD

    def close(self) -> None:
        if self._graphs is not None:
            self._graphs.close()

    def _compute(self, batch: PagedBatch) -> Tensor:
        return self._compute_at(batch, batch.ints.buffer.to(self._cache.pool.device, non_blocking=True))

    def _compute_at(self, batch: PagedBatch, buffer: Tensor) -> Tensor:
        """The model over the tables in `buffer`."""
        step = unpack(batch, batch.ints.at(buffer))
        attention = PagedAttention(self._cache, step, self._ops)
        return self._decoder.hidden(step.token_ids_T, step.positions_T, attention)

"""Carries out one `ScheduleOutput` on this process's share of the model: moves, then the computation, then sampling."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pagefleet_engine.layers.row_tiles import INVARIANT_ROWS
from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.attention import StepAttention
from pagefleet_engine.runtime.batch import Batch, build_batch
from pagefleet_engine.runtime.invariant import InvariantAttention
from pagefleet_engine.runtime.kv_cache import KvCache
from pagefleet_engine.runtime.sampler import Sampled, Sampler
from pagefleet_engine.scheduling.output import ScheduleOutput


class ModelRunner:
    """Owns model, pool and sampler; keeps nothing of a request between steps."""

    def __init__(self, decoder: Decoder, cache: KvCache, sampler: Sampler, *, batch_invariant: bool = False) -> None:
        self.decoder = replace(decoder, row_tile=INVARIANT_ROWS) if batch_invariant else decoder
        self._attention = InvariantAttention if batch_invariant else StepAttention
        self.cache = cache
        self.sampler = sampler

    @torch.inference_mode()
    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        """Run one step. One result per request with `samples`, in their order."""
        self._move(output)
        if not output.requests:
            return []
        batch = build_batch(output, self.cache.layout.block_size)
        hidden_TD = self.hidden(batch)
        if not batch.sampled:
            return []
        return self.sampler.sample(self.decoder.logits(hidden_TD[batch.sample_rows_S]), batch.sampled)

    def hidden(self, batch: Batch) -> Tensor:
        """Activations `[T, D]` of every row of the batch, before the final norm."""
        return self.decoder.hidden(batch.token_ids_T, batch.positions_T, self._attention(self.cache, batch))

    def _move(self, output: ScheduleOutput) -> None:
        """Copies in the order that `scheduling.output` prescribes."""
        if output.demote:
            self.cache.demote(output.demote)
        if output.swap_out:
            self.cache.swap_out([m.frame for m in output.swap_out], [m.slot for m in output.swap_out])
        if output.swap_in:
            self.cache.swap_in([m.slot for m in output.swap_in], [m.frame for m in output.swap_in])
        if output.copy:
            self.cache.copy([m.source for m in output.copy], [m.target for m in output.copy])

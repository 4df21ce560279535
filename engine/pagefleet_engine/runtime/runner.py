"""Carries out one `ScheduleOutput` on this process's share of the model: moves, then the computation, then sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pagefleet_engine.layers.row_tiles import INVARIANT_ROWS
from pagefleet_engine.memory.moves import CopyFrame, Demote, SwapIn, SwapOut
from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.attention import StepAttention
from pagefleet_engine.runtime.batch import Batch, build_batch
from pagefleet_engine.runtime.invariant import InvariantAttention
from pagefleet_engine.runtime.kv_cache import KvCache
from pagefleet_engine.runtime.sampler import Sampled, Sampler
from pagefleet_engine.scheduling.output import ScheduleOutput


class FrameMoves(NamedTuple):
    """What has to be moved before the computation; see `ScheduleOutput`."""

    swap_out: tuple[SwapOut, ...]
    demote: tuple[Demote, ...]
    swap_in: tuple[SwapIn, ...]
    copy: tuple[CopyFrame, ...]


class Work(NamedTuple):
    """One step as every rank needs it."""

    moves: FrameMoves
    batch: Batch | None
    """None when there is nothing to compute."""


def plan_work(output: ScheduleOutput, block_size: int) -> Work:
    """The step's moves and its batch."""
    batch = build_batch(output, block_size) if output.requests else None
    return Work(FrameMoves(output.swap_out, output.demote, output.swap_in, output.copy), batch)


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
        work = plan_work(output, self.cache.layout.block_size)
        return self.sample(work, self.compute(work))

    @torch.inference_mode()
    def compute(self, work: Work) -> Tensor | None:
        """Moves, then activations `[T, D]` of the batch; None when there is nothing to compute."""
        self._move(work.moves)
        return None if work.batch is None else self.hidden(work.batch)

    @torch.inference_mode()
    def sample(self, work: Work, hidden_TD: Tensor | None) -> list[Sampled]:
        """The next token of every request whose last known token was in the step."""
        if work.batch is None or hidden_TD is None or not work.batch.sampled:
            return []
        logits_SV = self.decoder.logits(hidden_TD[work.batch.sample_rows_S])
        return self.sampler.sample(logits_SV, work.batch.sampled)

    def hidden(self, batch: Batch) -> Tensor:
        """Activations `[T, D]` of every row of the batch, before the final norm."""
        return self.decoder.hidden(batch.token_ids_T, batch.positions_T, self._attention(self.cache, batch))

    def _move(self, moves: FrameMoves) -> None:
        """Copies in the order that `scheduling.output` prescribes."""
        if moves.demote:
            self.cache.demote(moves.demote)
        if moves.swap_out:
            self.cache.swap_out([m.frame for m in moves.swap_out], [m.slot for m in moves.swap_out])
        if moves.swap_in:
            self.cache.swap_in([m.slot for m in moves.swap_in], [m.frame for m in moves.swap_in])
        if moves.copy:
            self.cache.copy([m.source for m in moves.copy], [m.target for m in moves.copy])

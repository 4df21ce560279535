"""Carries out one `ScheduleOutput` on this process's share of the model: moves, then the computation, then sampling.

How the computation is laid out is the business of `runtime.steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from pagefleet_engine.layers.row_tiles import INVARIANT_ROWS
from pagefleet_engine.memory.moves import CopyFrame, Demote, SwapIn, SwapOut
from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.backend import CPU, Backend
from pagefleet_engine.runtime.batch import Batch, build_batch
from pagefleet_engine.runtime.fused import with_fused_layers
from pagefleet_engine.runtime.graphs import Capture
from pagefleet_engine.runtime.kv_cache import KvCache
from pagefleet_engine.runtime.sampler import Sampled, Sampler
from pagefleet_engine.runtime.scoring import score, with_scores
from pagefleet_engine.runtime.steps import PagedSteps, RequestSteps, StepBatch, Steps
from pagefleet_engine.scheduling.output import ScheduleOutput


class FrameMoves(NamedTuple):
    """What has to be moved before the computation; see `ScheduleOutput`."""

    swap_out: tuple[SwapOut, ...]
    demote: tuple[Demote, ...]
    swap_in: tuple[SwapIn, ...]
    copy: tuple[CopyFrame, ...]


AnyBatch = TypeVar("AnyBatch", bound=StepBatch, covariant=True)


class Work(NamedTuple, Generic[AnyBatch]):
    """One step as every rank needs it."""

    moves: FrameMoves
    batch: AnyBatch | None
    """None when there is nothing to compute."""
    touched: frozenset[int] | None = None
    """Frames that the batch reads or writes; None when nobody looked, which stands for all."""


def plan_work(output: ScheduleOutput, block_size: int) -> Work[Batch]:
    """A step laid out request by request, as a runner on the CPU does it."""
    return Work(_moves(output), build_batch(output, block_size) if output.requests else None)


class ModelRunner:
    """Owns model, pool and sampler; keeps nothing of a request between steps but copies of its frame tables."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        sampler: Sampler,
        *,
        batch_invariant: bool = False,
        backend: Backend = CPU,
        capture: Capture | None = None,
    ) -> None:
        if batch_invariant:
            decoder = replace(decoder, row_tile=INVARIANT_ROWS)
        elif backend.is_paged:
            decoder = with_fused_layers(decoder, backend.impl)
        self.decoder = decoder
        self.cache = cache
        self.sampler = sampler
        self._steps: Steps
        if backend.is_paged:
            self._steps = PagedSteps(decoder, cache, backend, batch_invariant=batch_invariant, capture=capture)
        else:
            self._steps = RequestSteps(decoder, cache, batch_invariant=batch_invariant)

    def plan(self, output: ScheduleOutput) -> Work[StepBatch]:
        """The step's moves and its batch; on rank 0 only."""
        moves = _moves(output)
        if not output.requests:
            return Work(moves, None)
        waits = bool(output.swap_out or output.swap_in) or self.cache.transfers.are_pending
        return Work(moves, self._steps.plan(output), frozenset(touched_frames(output)) if waits else None)

    @torch.inference_mode()
    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        """Run one step. One result per request with `samples` or `prompt_rows`, those with `samples` first."""
        work = self.plan(output)
        return self.sample(work, self.compute(work))

    @torch.inference_mode()
    def compute(self, work: Work[StepBatch]) -> Tensor | None:
        """Moves, then activations `[T, D]` of the batch; None when there is nothing to compute."""
        self._move(work.moves)
        if work.batch is None:
            return None
        self.cache.make_ready(work.touched)
        return self.hidden(work.batch)

    @torch.inference_mode()
    def sample(self, work: Work[StepBatch], hidden_TD: Tensor | None) -> list[Sampled]:
        """The next token of every request whose last known token was in the step, and scores of prompt tokens."""
        batch = work.batch
        if batch is None or hidden_TD is None:
            return []
        sampled: list[Sampled] = []
        if batch.sampled:
            logits_SV = self.decoder.logits(hidden_TD[batch.sample_rows_S.to(hidden_TD.device)])
            sampled = self.sampler.sample(logits_SV, batch.sampled)
        if not batch.scored:
            return sampled
        return with_scores(sampled, [score(self.decoder.logits, hidden_TD, rows) for rows in batch.scored])

    def hidden(self, batch: StepBatch) -> Tensor:
        """Activations `[T, D]` of every row of the batch, before the final norm."""
        return self._steps.hidden(batch)

    def close(self) -> None:
        """No step comes any more. Called on every rank before the process group ends."""
        self._steps.close()

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


def _moves(output: ScheduleOutput) -> FrameMoves:
    return FrameMoves(output.swap_out, output.demote, output.swap_in, output.copy)


def touched_frames(output: ScheduleOutput) -> Iterator[int]:
    """Frames that the computation of a step reads or writes."""
    for request in output.requests:
        yield from (group.frame for group in request.context)
        for write in request.writes:
            yield from write.frames

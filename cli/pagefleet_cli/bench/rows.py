"""An executor that keeps what the model computed at every position, not only at the last one.

The engine's step is unchanged: the same batch, the same attention over the same frames, the same sampler. What is kept
are activations before the final norm, 85 times smaller than SmolLM2's logits; whoever compares makes logits of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pagefleet_engine.runtime.runner import ModelRunner, plan_work
from pagefleet_engine.runtime.sampler import Sampled
from pagefleet_engine.scheduling.output import ScheduleOutput


class Rows(NamedTuple):
    """One request's activations `[N, D]` of positions `start .. start + N`; those before were in the prefix cache."""

    start: int
    hidden_ND: Tensor


class RowsExecutor:
    """`LocalExecutor` that remembers activations until they are taken."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._parts: dict[str, list[Rows]] = {}

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        """Run one step and keep every row of it."""
        work = plan_work(output, self._runner.cache.layout.block_size)
        hidden_TD = self._runner.compute(work)
        if work.batch is not None and hidden_TD is not None:
            for rows in work.batch.requests:
                self._parts.setdefault(rows.request_id, []).append(Rows(rows.start, hidden_TD[rows.rows]))
        return self._runner.sample(work, hidden_TD)

    def take(self, request_id: str) -> Rows:
        """What was computed for a request, forgotten here. Raises ValueError when something was computed twice."""
        parts = self._parts.pop(request_id)
        at = parts[0].start
        for part in parts:
            if part.start != at:
                raise ValueError(f"request {request_id} was preempted: its rows go on at {part.start}, not at {at}")
            at += part.hidden_ND.shape[0]
        return Rows(parts[0].start, torch.cat([part.hidden_ND for part in parts]))

    def forget(self, request_id: str) -> None:
        """Nobody will take its rows."""
        self._parts.pop(request_id, None)

    def close(self) -> None:
        """Nothing to end."""

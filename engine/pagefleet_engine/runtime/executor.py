"""Who runs a step: one process now, several ranks behind the same Protocol later."""

from __future__ import annotations

from typing import Protocol

from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampled
from pagefleet_engine.scheduling.output import ScheduleOutput


class Executor(Protocol):
    """Executes steps one at a time. An exception means that the engine cannot go on."""

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        """One result per request with `samples`, in their order, then those that have `prompt_rows` alone."""
        ...

    def close(self) -> None: ...


class LocalExecutor:
    """Everything in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    @property
    def num_frames(self) -> int:
        """Frames of the pool."""
        return self._runner.cache.num_frames

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        return self._runner.execute(output)

    def close(self) -> None:
        self._runner.close()

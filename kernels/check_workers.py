"""Runs cases in processes that may hang, abort or be killed: each costs its own case and nothing else.

A kernel that hangs is killed with its process, and one that spoils the CUDA context spoils that of one process. Knows
nothing of CUDA and imports nothing heavy; what a process needs comes with its first case.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from pagefleet_kernels.bench.case import Case

_REAP_S = 5.0
"""A process inside the GPU's driver may outlive SIGKILL; nobody waits longer for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    """One line; None where the case passed."""
    trace: str = ""
    """More about the error, for the log."""
    is_sound: bool = True
    """The process can be trusted with another case."""
    seconds: float = 0.0


def as_rows(name: str, result: Any) -> list[dict[str, Any]]:
    """A case's result as rows of plain values."""
    if isinstance(result, float):
        return [{"case": name, "largest_error": round(result, 6)}]
    rows = result if isinstance(result, list) else [result]
    return [row if isinstance(row, dict) else dataclasses.asdict(row) for row in rows]


def outcome_of(case: Case) -> Outcome:
    """Run a case here. A failed comparison leaves the process sound; any other error may not."""
    began = time.monotonic()
    try:
        rows = as_rows(case.name, case.run())
    except Exception as error:  # the other cases must outlive any failing one
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        trace = "".join(traceback.format_exception(error)[-3:])
        sound = isinstance(error, AssertionError)
        return Outcome(error=said, trace=trace, is_sound=sound, seconds=time.monotonic() - began)
    return Outcome(rows=rows, seconds=time.monotonic() - began)


def serve(connection: Connection, log: str) -> None:
    """A worker's life: receive a case, say that it begins, send its outcome; until the other side is gone."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        connection.send(None)
        connection.send(outcome_of(case))


def last_words(log: Path) -> str:
    """What a dead process wrote last; where Python names the fatal error, the lines around that."""
    lines = [" ".join(line.split()) for line in log.read_text(errors="replace").splitlines() if line.strip()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines) - 1)
    return " | ".join(lines[max(0, fatal - 2) : fatal + 4])[:500]


class Worker:
    """One process at a time, started when a case comes."""

    def __init__(self, folder: Path, number: int, start_limit_s: float) -> None:
        self.case: Case | None = None
        self.has_begun, self.ends = False, 0.0
        self._folder, self._number, self._start_limit_s = folder, number, start_limit_s
        self._process: SpawnProcess | None = None
        self._starts = self._served = 0
        self.connection: Connection

    def give(self, case: Case) -> None:
        """Let the process run a case; a new one where there is none, or where it died while it had nothing to do."""
        if self._process is None or not self._process.is_alive():
            self.end()
            self._start()
        self.case, self.has_begun, self.ends = case, False, time.monotonic() + self._start_limit_s
        with suppress(BrokenPipeError):  # it died this moment, and `hear` will find that
            self.connection.send(case)

    def hear(self) -> Outcome | None:
        """The outcome, where there is one; to be called when the connection has something to say."""
        assert self.case is not None
        try:
            message = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return self._died()
        if message is None:
            self.has_begun, self.ends = True, time.monotonic() + self.case.limit_s
        else:
            assert isinstance(message, Outcome)
            return message
        return None

    def overdue(self) -> Outcome | None:
        """The outcome of a case whose time is over."""
        assert self.case is not None
        if time.monotonic() < self.ends:
            return None
        state, limit = ("no result", self.case.limit_s) if self.has_begun else ("not begun", self._start_limit_s)
        return Outcome(error=f"hung: {state} after {limit:g} s; its process was killed", is_sound=False)

    def finish(self, outcome: Outcome, batch: int) -> Case:
        """Take the case back. After an error that may have spoilt the process, or `batch` cases, the process ends."""
        assert self.case is not None
        case, self.case = self.case, None
        self._served += 1
        if not outcome.is_sound or self._served >= batch:
            self.end()
        return case

    def end(self) -> None:
        """Kill the process, which holds nothing worth keeping, and give back what it held."""
        self.case = None
        if self._process is None:
            return
        self._process.kill()
        self._process.join(_REAP_S)
        self.connection.close()
        self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._starts, self._served = self._starts + 1, 0
        self._process = context.Process(target=serve, args=(theirs, str(self._log)), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the connection

    @property
    def _log(self) -> Path:
        return self._folder / f"worker-{self._number}-{self._starts}.log"

    def _died(self) -> Outcome:
        assert self._process is not None
        self._process.join(_REAP_S)
        code = self._process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        return Outcome(error=f"its process died: {how}: {last_words(self._log)}", is_sound=False)


class Crew:
    """Several workers. Leaving the `with` block kills what still runs.

    batch: cases after which a process is replaced. start_limit_s: for a process to start and to import what its first
    case needs; the case's own limit counts from then on.
    """

    def __init__(self, size: int, logs: Path, *, batch: int = 24, start_limit_s: float = 120.0) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._batch = batch
        self._workers = [Worker(logs, number, start_limit_s) for number in range(size)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def run(self, cases: Sequence[Case], *, until: float, took: Callable[[Case, Outcome], None]) -> None:
        """Run cases, in order as workers come free, and report each as it ends, until `until` (`time.monotonic`).

        What runs then is killed; neither it nor what had not begun is reported.
        """
        waiting = deque(cases)
        while time.monotonic() < until:
            for worker in self._workers:
                if worker.case is None and waiting:
                    worker.give(waiting.popleft())
            busy = [worker for worker in self._workers if worker.case]
            if not busy:
                return
            first = min(until, *(worker.ends for worker in busy))
            ready = wait([worker.connection for worker in busy], timeout=max(0.0, first - time.monotonic()))
            for worker in busy:
                outcome = worker.hear() if worker.connection in ready else worker.overdue()
                if outcome is not None:
                    took(worker.finish(outcome, self._batch), outcome)
        for worker in self._workers:
            if worker.case:
                worker.end()

    def end(self) -> None:
        for worker in self._workers:
            worker.end()

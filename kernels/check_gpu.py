"""Check and measure the kernels on a GPU: the whole test matrix on the device, then figures; one JSON and one table.

Needs no network and, with `PYTHONPATH=kernels:engine`, no installation; without the engine its parts are left out. A
case that fails, hangs or ends its process is recorded and the rest goes on. `--dry-run` does everything on the CPU in
tiny shapes, with Triton's interpreter. Exits with 1 where a case failed or a check of correctness was not run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from check_report import Report
from check_workers import Crew
from pagefleet_kernels.bench import cases as bench
from pagefleet_kernels.bench.case import Case
from pagefleet_kernels.bench.matrix import matrix

CHECKS = ("environment", "tokens", "correctness")
"""Sections that must be complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Cases that belong together. On a GPU each part has processes of its own."""

    name: str
    cases: Callable[[str], Iterable[Case]]
    """Of a device."""
    share: float
    """Of the deadline, at most: a slow part must leave time to the others."""
    is_parallel: bool = False
    """Nothing is measured: several processes at once."""
    serves: Sequence[str] = ()
    """Parts that else would compile one kernel after the other. Such a part runs with them, not by its own name."""


def of_engine(section: str, device: str) -> list[Case]:
    """The engine's cases of a section, or one that says why there are none."""
    try:
        import check_engine
        import check_tokens
    except ImportError as error:
        return [Case(section, "engine", partial(dict, left_out=f"it needs PYTHONPATH=kernels:engine; {error}"))]
    makers = {
        "tokens": check_tokens.cases,
        "compile": check_engine.compile_cases,
        "engine": check_engine.engine_cases,
        "graphs": check_engine.graphs_cases,
    }
    return makers[section](device == "cpu")


def correctness(device: str) -> list[Case]:
    """Every op, and the engine's tokens, which take longest: their last case halfway, when its kernels are there."""
    tokens, ops = of_engine("tokens", device), list(matrix(device))
    half = len(ops) // 2
    return [*tokens[:-1], *ops[:half], tokens[-1], *ops[half:]]


def compiled(device: str) -> list[Case]:
    """What the measuring parts need."""
    return [*of_engine("compile", device), *bench.compile_cases(device)]


def environment(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        found["multiprocessors"] = properties.multi_processor_count
        found["memory_gib"] = round(properties.total_memory / 2**30, 1)
    return found


MEASURING = (
    Part(name="decode", cases=bench.decode_cases, share=0.2),
    Part(name="engine", cases=partial(of_engine, "engine"), share=0.25),
    Part(name="graphs", cases=partial(of_engine, "graphs"), share=0.2),
    Part(name="model", cases=bench.model_cases, share=0.15),
    Part(name="transfer", cases=bench.transfer_cases, share=0.1),
    Part(name="prefill", cases=bench.prefill_cases, share=0.1),
    Part(name="layouts", cases=bench.layout_cases, share=0.1),
    Part(name="flashinfer", cases=bench.flashinfer_cases, share=0.1),
)
PARTS = (
    Part(name="correctness", cases=correctness, share=0.5, is_parallel=True),
    Part(name="compile", cases=compiled, share=0.15, is_parallel=True, serves=[part.name for part in MEASURING]),
    *MEASURING,
    Part(name="compile_tries", cases=bench.compile_tries, share=0.2, is_parallel=True, serves=["tune"]),
    Part(name="tune", cases=bench.tune_cases, share=1.0),
)
"""In the order of their worth: a run that is cut short has the important ones."""


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of these names (`all` for every one), and what serves them. Raises ValueError for an unknown name."""
    known = [part.name for part in PARTS if not part.serves]
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"--parts {name}: use all, or some of {', '.join(known)}")
    wanted = set(known if "all" in names else names)
    return [part for part in PARTS if part.name in wanted or wanted & set(part.serves)]


def run_parts(report: Report, parts: Sequence[Part], *, device: str, workers: int, deadline: float) -> None:
    """Run the parts one after the other, each for its share of the deadline at most."""
    first = Case("environment", "versions", partial(environment, device))
    planned = [(part, list(part.cases(device))) for part in parts]
    planned[0][1].insert(0, first)
    for _, cases in planned:
        report.expect(cases)
    end, logs = report.started + deadline, report.folder / "logs"
    with ExitStack() as stack:
        # Nothing is measured on a CPU, so one crew does for all.
        shared = stack.enter_context(Crew(workers, logs)) if device == "cpu" else None
        for part, cases in planned:
            until = min(end, time.monotonic() + part.share * deadline)
            with ExitStack() as own:
                size = workers if part.is_parallel else 1
                crew = shared or own.enter_context(Crew(size, logs / part.name))
                crew.run(cases, until=until, took=report.took)
    report.write()


def say(report: Report) -> None:
    """What failed, what was left out, and where the rest is."""
    for failure in report.failures:
        print("FAILED", failure)
    for name in report.left_out:
        print("LEFT OUT for lack of time:", name)
    counts = f"{len(report.failures)} failures, {len(report.left_out)} left out"
    print(f"{counts}; wrote {report.folder}/check_gpu.json and check_gpu.md", flush=True)


def options_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Says in one line what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "check-gpu")), help="output folder")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, in Triton's interpreter")
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds in all; what then runs is killed")
    parser.add_argument("--workers", type=int, help="processes that compile and check at once")
    parser.add_argument("--parts", default="all", help="comma-separated parts, `all` for every one")
    options = parser.parse_args(argv)
    if not options.dry_run and not torch.cuda.is_available():
        parser.error("this machine has no NVIDIA GPU that torch can use; try --dry-run")
    if options.workers is None:
        options.workers = 2 if options.dry_run else max(1, min(12, (os.cpu_count() or 1) - 2))
    try:
        options.parts = chosen(options.parts.split(","))
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    options = options_of()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come: many share the cores
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends by way of `finally`, with all its processes
    device = "cpu" if options.dry_run else "cuda"
    report = Report(folder=options.out)
    try:
        run_parts(report, options.parts, device=device, workers=options.workers, deadline=options.deadline)
    finally:
        report.write()
        say(report)
    return 1 if report.failures or not report.has_all(CHECKS) else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a process that even SIGKILL cannot end, inside the driver, must not hold this one

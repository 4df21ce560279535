"""Check and measure the kernels on a GPU: the whole test matrix on the device, then figures; one JSON and one table.

Needs no network and, with `PYTHONPATH=kernels:engine`, no installation; without the engine
its parts are left out. A failing case is recorded and the rest goes on.
`--dry-run` does everything on the CPU in tiny shapes, with Triton's interpreter. `--help` lists the options.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Report:
    """What has been found so far; written after every section, so that a stopped run leaves its part."""

    folder: Path
    deadline: float
    started: float = dataclasses.field(default_factory=time.monotonic)
    sections: dict[str, Any] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    def run(self, section: str, name: str, case: Callable[[], Any]) -> Any:
        """Run one case; record its row or its failure. Cases after the deadline are recorded as left out."""
        if time.monotonic() - self.started > self.deadline:
            self.failures.append(f"{section}: {name}: left out, the time was up")
            return None
        try:
            row = case()
        except Exception as error:  # the report must outlive any failing case
            self.failures.append(f"{section}: {name}: {type(error).__name__}: {str(error)[:300]}")
            print("FAILED", section, name, "".join(traceback.format_exception(error)[-3:]), flush=True)
            return None
        rows = row if isinstance(row, list) else [row]
        shown = [dataclasses.asdict(r) if dataclasses.is_dataclass(r) and not isinstance(r, type) else r for r in rows]
        self.sections.setdefault(section, []).extend(shown)
        print(f"{time.monotonic() - self.started:6.1f}s {section:10} {name:36} {_short(shown)}", flush=True)
        return row

    def write(self) -> None:
        """The JSON and the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = {**self.sections, "failures": self.failures, "seconds": round(time.monotonic() - self.started, 1)}
        (self.folder / "check_gpu.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.folder / "check_gpu.md").write_text(as_tables(whole))


def _short(rows: Sequence[Any]) -> str:
    return "; ".join(" ".join(f"{v}" for v in row.values()) if isinstance(row, dict) else str(row) for row in rows)[
        :300
    ]


def as_tables(sections: dict[str, Any]) -> str:
    """Every section as a Markdown table."""
    lines = ["# Kernel check", ""]
    for name, rows in sections.items():
        lines.append(f"## {name}")
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            keys = list(rows[0])
            lines += ["", "| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
            lines += ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in rows]
        else:
            lines += ["", *(f"- {row}" for row in (rows if isinstance(rows, list) else [rows]))]
        lines.append("")
    return "\n".join(lines)


def run_check(check: str, arguments: dict[str, Any], device: str) -> float:
    """One correctness case, in a worker process."""
    import torch

    from pagefleet_kernels import checks
    from pagefleet_kernels.bench import cases

    if device != "cpu":
        torch.set_num_threads(1)  # many workers share the cores
    if check == "warm":
        return cases.warm(**arguments, device=device)
    return float(getattr(checks, check)(**arguments, device=device))


def correctness(report: Report, device: str, workers: int) -> None:
    """All cases, compiled in parallel."""
    from pagefleet_kernels.bench import cases as bench_cases
    from pagefleet_kernels.bench.matrix import matrix

    cases = list(matrix(full=device != "cpu"))
    if workers <= 1:
        for name, check, arguments in cases:
            report.run("correctness", name, lambda c=check, a=arguments: _checked(run_check(c, a, device)))  # type: ignore[misc]
        return
    warm = [
        (f"compile {k} {p} {n}", "warm", {"kind": k, "precision": p, "launch": n})
        for k, p, n in bench_cases.warm_jobs()
    ]
    cases = warm + cases
    # A wild address ruins a process's CUDA context: fresh processes keep it from failing more than a few other cases.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=16) as pool:
        pending = [(name, pool.submit(run_check, check, arguments, device)) for name, check, arguments in cases]
        for name, future in pending:
            report.run("correctness", name, lambda n=name, f=future: _checked(f.result(timeout=120), n))  # type: ignore[misc]


def _checked(error: float, name: str = "") -> dict[str, Any]:
    return {"case": name, "largest_error": round(error, 6)}


def environment(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import triton

    found: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        found["multiprocessors"] = properties.multi_processor_count
        found["memory_gib"] = round(properties.total_memory / 2**30, 1)
    return found


def measurements(report: Report, device: str, parts: Sequence[str]) -> None:
    """All figures. Shapes are Llama-3-8B's on a GPU and tiny ones on a CPU."""
    from pagefleet_kernels.bench import cases

    cases.measure(report, device, parts)


def engine_measurements(report: Report, device: str, parts: Sequence[str]) -> None:
    """The engine's own parts, after the pool of the others is gone."""
    if importlib.util.find_spec("pagefleet_engine") is None:
        print("the parts engine and graphs are left out: they need PYTHONPATH=kernels:engine")
        return
    import torch

    import check_engine

    if device != "cpu":
        gc.collect()
        torch.cuda.empty_cache()
    check_engine.measure(report, device, parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "check-gpu")), help="output folder")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, in Triton's interpreter")
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds after which no new case starts")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check at once")
    parser.add_argument("--parts", default="all", help="comma-separated parts, `all` for every one")
    options = parser.parse_args()
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    device = "cpu" if options.dry_run else "cuda"
    report = Report(folder=options.out, deadline=options.deadline)
    parts = options.parts.split(",")
    report.run("environment", "versions", lambda: environment(device))
    try:
        if "all" in parts or "correctness" in parts:
            correctness(report, device, 1 if options.dry_run else options.workers)
            report.write()
        measurements(report, device, parts)
        engine_measurements(report, device, parts)
    finally:
        report.write()
    for failure in report.failures:
        print("FAILED", failure)
    print(f"{len(report.failures)} failures; wrote {options.out}/check_gpu.json and check_gpu.md")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""What `check_gpu.py` finds, case by case, as one JSON and one readable table; written after every case."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_workers import Outcome
from pagefleet_kernels.bench.case import Case


@dataclass
class Report:
    """Knows all cases before the first one runs, so that whatever ends the script, the file says what is missing."""

    folder: Path
    started: float = field(default_factory=time.monotonic)
    outcomes: dict[tuple[str, str], Outcome | None] = field(default_factory=dict)
    """By section and name, in the order of their worth; None: not yet run."""

    def expect(self, cases: Iterable[Case]) -> None:
        """Raises ValueError for a case that has the section and the name of another."""
        for case in cases:
            key = case.section, case.name
            if key in self.outcomes:
                raise ValueError(f"two cases are called {case.section}: {case.name}")
            self.outcomes[key] = None

    def took(self, case: Case, outcome: Outcome) -> None:
        """Keep an outcome, print its line, write the files."""
        self.outcomes[case.section, case.name] = outcome
        said = f"FAILED {outcome.error}" if outcome.error else _short(outcome.rows)
        at = time.monotonic() - self.started
        print(f"{at:6.1f}s {outcome.seconds:5.1f}s {case.section:11} {case.name:36} {said}", flush=True)
        if outcome.trace:
            print(outcome.trace, flush=True)
        self.write()

    @property
    def failures(self) -> list[str]:
        found = self.outcomes.items()
        return [
            f"{section}: {name}: {outcome.error}" for (section, name), outcome in found if outcome and outcome.error
        ]

    @property
    def left_out(self) -> list[str]:
        """For lack of time: not begun, or cut short."""
        return [f"{section}: {name}" for (section, name), outcome in self.outcomes.items() if outcome is None]

    def has_all(self, sections: Sequence[str]) -> bool:
        """Whether every case of these sections was run."""
        return not any(outcome is None for (section, _), outcome in self.outcomes.items() if section in sections)

    def tables(self) -> dict[str, Any]:
        """Sections with their rows, in the order of the cases; then failures, what was left out, and the seconds."""
        found: dict[str, Any] = {section: [] for section, _ in self.outcomes}
        for (section, _), outcome in self.outcomes.items():
            found[section].extend(outcome.rows if outcome else [])
        seconds = round(time.monotonic() - self.started, 1)
        return {**found, "failures": self.failures, "left_out": self.left_out, "seconds": seconds}

    def write(self) -> None:
        """The JSON and the table; a reader never sees half of one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        whole = self.tables()
        for name, text in (("check_gpu.json", json.dumps(whole, indent=1) + "\n"), ("check_gpu.md", as_text(whole))):
            unfinished = self.folder / f".{name}"
            unfinished.write_text(text)
            unfinished.replace(self.folder / name)


def _short(rows: Sequence[dict[str, Any]]) -> str:
    return "; ".join(" ".join(f"{value}" for value in row.values()) for row in rows)[:300]


def as_text(sections: dict[str, Any]) -> str:
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

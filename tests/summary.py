"""The end of `make test`: what was skipped and what it needs, then one line of totals over all tiers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts over several JUnit reports, and the reasons of the skipped ones."""

    passed: int
    failed: int
    skips: tuple[str, ...]


def read_reports(paths: Iterable[Path]) -> Totals:
    """Add up JUnit reports."""
    passed, failed, skips = 0, 0, []
    for case in (case for path in paths for case in ElementTree.parse(path).iter("testcase")):
        skipped = case.find("skipped")
        if skipped is not None:
            skips.append(skipped.get("message", "no reason given"))
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
    return Totals(passed=passed, failed=failed, skips=tuple(skips))


def render(totals: Totals) -> str:
    """The closing lines."""
    counted = Counter(totals.skips)
    lines = [f"skipped {count}: {reason}" for reason, count in sorted(counted.items())] or ["nothing was skipped"]
    return "\n".join([*lines, f"{totals.passed} passed, {totals.failed} failed, {len(totals.skips)} skipped"])


if __name__ == "__main__":
    print(render(read_reports(map(Path, sys.argv[1:]))))

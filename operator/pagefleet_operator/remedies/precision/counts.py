"""What is counted: the outcomes of one route's unconstrained answers since the last look, by the arm they ran in.

The engine's arm is the engine's precision, the control arm the fallback precision. Other precisions, `mixed` among
them, belong to neither and are left out; an aborted answer says nothing about quality and is left out too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pagefleet_engine.contract.precision import Precision


class Outcome(StrEnum):
    """How one structured answer ended, as the engine's metric labels it."""

    VALID = "valid"
    INVALID_JSON = "invalid_json"
    SCHEMA_VIOLATION = "schema_violation"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


Increments = Mapping[tuple[str, str], int]
"""Answers since the last look by (precision, outcome); negative numbers count as 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The answers of one arm."""

    valid: int = 0
    failed: int = 0  # invalid JSON and schema violations
    truncated: int = 0  # cut by their length: nobody knows whether they would have been valid

    @property
    def judged(self) -> int:
        """Answers with a verdict."""
        return self.valid + self.failed

    @property
    def answers(self) -> int:
        """All of them."""
        return self.valid + self.failed + self.truncated

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            valid=self.valid + other.valid,
            failed=self.failed + other.failed,
            truncated=self.truncated + other.truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The answers of both arms over the same time."""

    engine: Tally = Tally()
    control: Tally = Tally()

    @property
    def answers(self) -> int:
        """All of them."""
        return self.engine.answers + self.control.answers

    def __add__(self, other: Arms) -> Arms:
        return Arms(engine=self.engine + other.engine, control=self.control + other.control)


def sort_into_arms(counts: Increments, *, engine: Precision, fallback: Precision) -> Arms:
    """The increments of the two precisions that are compared."""
    return Arms(engine=_tally(counts, engine), control=_tally(counts, fallback))


def _tally(counts: Increments, precision: Precision) -> Tally:
    return Tally(
        valid=_count(counts, precision, Outcome.VALID),
        failed=_count(counts, precision, Outcome.INVALID_JSON) + _count(counts, precision, Outcome.SCHEMA_VIOLATION),
        truncated=_count(counts, precision, Outcome.TRUNCATED),
    )


def _count(counts: Increments, precision: Precision, outcome: Outcome) -> int:
    return max(0, counts.get((precision, outcome), 0))

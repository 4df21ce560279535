"""What is known of one number: a value, or why there is none.

A bare float could not tell "no data" from zero; taking the one for the other removes pods at peak load.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A number that was measured, finite and in its range. Zero is a value."""

    value: float


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no number: it was not sent, or not asked for yet."""

    why: str


@dataclass(frozen=True, slots=True)
class Stale:
    """The last number is too old to act on."""

    age_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """Something was sent that cannot be this number."""

    why: str


Absent = Missing | Stale | Invalid
Sample = Value | Missing | Stale | Invalid

NOTHING_YET = Missing("it was not looked at yet")


def number(sample: Sample) -> float | None:
    """The value, or None."""
    return sample.value if isinstance(sample, Value) else None


def explain(sample: Absent) -> str:
    """Why there is no number, as the end of a sentence that stays the same for as long as the reason does."""
    match sample:
        case Missing(why):
            return f"is missing: {why}"
        case Stale(why=why):
            return f"is too old: {why}"
        case Invalid(why):
            return f"is invalid: {why}"

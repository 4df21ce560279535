"""A problem with a spec: where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProblem:
    """One thing that is wrong with one field."""

    path: str
    """Such as `spec.engine.maxNumSeqs.initial` or `spec.routes[0].name`."""
    message: str
    """What is wrong and what to do."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

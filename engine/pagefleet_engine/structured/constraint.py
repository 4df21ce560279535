"""What the sampler knows of a constraint: which tokens may come next, and whether any may come at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ConstraintFailed(Exception):
    """No token may be sampled: the constraint is too costly, or leaves nothing. Ends its own request only."""


class Constraint(Protocol):
    """One request's constraint. Mutable, and used by one thread at a time.

    Its state is a function of the tokens of the answer, so preemption by swap or recompute does not touch it.
    """

    def mask(self, answer: Sequence[int]) -> bytes:
        """The tokens that may follow `answer`: bit i of byte j allows token `8 * j + i`. Raises `ConstraintFailed`.

        `answer` holds every token of the answer so far; those that are new since the last call are taken in.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Take in the sampled token. True when nothing may follow it. Raises `ConstraintFailed`."""
        ...

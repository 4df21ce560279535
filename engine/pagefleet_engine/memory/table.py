"""The frames of one request, group by group.

A group is a run of consecutive tokens that are kept together. While it is being written it lies in open BF16 frames of
`block_size` tokens; once full it is sealed into one frame:

    sealed[0] sealed[1] … sealed[k-1] | open: frames[0] frames[1] …
    0 ............................... num_sealed_tokens ......... num_tokens
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pagefleet_engine.contract.precision import Precision


class SealedGroup(NamedTuple):
    """One full group, read-only."""

    frame: int
    start: int
    """Position of its first token."""
    length: int
    """Tokens in it: `tokens_per_frame(precision)`."""
    precision: Precision


@dataclass(slots=True, kw_only=True, eq=False)
class OpenGroup:
    """The group at hand. `num_tokens` of its `length` tokens are written, in `frames` of `block_size` tokens each."""

    start: int
    length: int
    precision: Precision
    """What it will be sealed in; the open frames themselves are BF16."""
    frames: list[int] = field(default_factory=list)
    num_tokens: int = 0


class PrecisionRun(NamedTuple):
    """Groups from `start` on have this precision, up to the next run."""

    start: int
    precision: Precision


@dataclass(slots=True, eq=False)
class FrameTable:
    """Sealed groups in order and the open one. `sealed` grows at the end; any other change of it raises `epoch`."""

    sealed: list[SealedGroup] = field(default_factory=list)
    open: OpenGroup | None = None
    num_sealed_tokens: int = 0
    epoch: int = 0
    """Changes when entries of `sealed` were replaced or removed, so that copies of the table must be made anew."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the frames hold."""
        return self.num_sealed_tokens + (self.open.num_tokens if self.open is not None else 0)

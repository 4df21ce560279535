"""The one message from the scheduler to the runner, and the one that the scheduler answers with.

The runner carries out a `ScheduleOutput` in this order, each part complete before the next reads or writes the same
frame: `demote`, `swap_out`, `swap_in`, `copy`, then the computation of `requests`. Nothing follows the computation:
what it sealed is sealed, and the scheduler frees what became superfluous.

A query at position p sees every group before p's own in its sealed precision, and its own group in BF16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from pagefleet_engine.memory.moves import CopyFrame, Demote, GroupWrite, SwapIn, SwapOut
from pagefleet_engine.memory.table import FrameTable, SealedGroup
from pagefleet_engine.request import FinishReason, SamplingParams

if TYPE_CHECKING:
    from pagefleet_engine.structured.constraint import Constraint

__all__ = [
    "Context",
    "CopyFrame",
    "Demote",
    "GroupWrite",
    "RequestUpdate",
    "ScheduleOutput",
    "ScheduledRequest",
    "SwapIn",
    "SwapOut",
]


class Context:
    """The first `count` sealed groups of a request, in order, without copying them.

    Valid until the scheduler's next `schedule()`. `epoch` and `count` tell what changed since an earlier step: with
    the same epoch, the entries known then are still the same and only later ones are new.
    """

    __slots__ = ("_table", "count", "epoch")

    def __init__(self, table: FrameTable, count: int) -> None:
        self._table = table
        self.count = count
        self.epoch = table.epoch

    @property
    def owner(self) -> object:
        """The same object in all steps of one request. A later request may have its id, but never its owner."""
        return self._table

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[SealedGroup]:
        return islice(self._table.sealed, self.count)

    def since(self, count: int) -> list[SealedGroup]:
        """The entries after the first `count`."""
        return self._table.sealed[count : self.count]


class ScheduledRequest(NamedTuple):
    """What one request computes in this step."""

    request_id: str
    token_ids: Sequence[int]
    """The tokens that go through the model now, at positions `start`, `start + 1`, …"""
    start: int
    context: Context
    """The sealed groups before `writes[0]`, in order; they hold tokens 0 to `writes[0].start`."""
    writes: tuple[GroupWrite, ...]
    """The groups that this step's tokens fall into, in order. Only the last one may stay open, and only the first may
    have been begun earlier. A group sealed here is context for the later tokens of this step."""
    samples: bool
    """The last token is the last one known: its logits give the next token."""
    sampling: SamplingParams
    known_token_ids: Sequence[int]
    """Prompt and answer so far, for penalties; a reference that grows later, so read the first `num_known` only."""
    num_known: int
    num_prompt_tokens: int
    """`num_known - num_prompt_tokens` is the index of the token to be sampled in the answer: the seeds' counter."""
    constraint: Constraint | None = None
    """Which tokens may follow. It stays with the rank that samples."""
    prompt_rows: range = range(0)
    """Positions of this step whose logits give the log probability of the prompt token after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOutput:
    """One step. `requests` is empty when there is nothing to compute, which does not mean nothing to move."""

    step: int
    """Number of the step, from 1."""
    demote: tuple[Demote, ...] = ()
    swap_out: tuple[SwapOut, ...] = ()
    """A frame that was demoted in the same step leaves as what it has become."""
    swap_in: tuple[SwapIn, ...] = ()
    copy: tuple[CopyFrame, ...] = ()
    requests: tuple[ScheduledRequest, ...] = ()
    """In the order of their ranks; prompt chunks and decodes mixed."""
    num_tokens: int = 0
    """Tokens of all requests together; at most the token budget."""
    ended: tuple[str, ...] = ()
    """Requests that have ended since the last step; the runner may forget what it keeps of them."""

    @property
    def is_empty(self) -> bool:
        """Nothing to compute and nothing to move."""
        return not (self.requests or self.swap_out or self.demote or self.swap_in or self.copy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUpdate:
    """What a step brought one request."""

    request_id: str
    new_token_ids: tuple[int, ...]
    """Without the stop token that ended the request, if one did."""
    stop_token_id: int | None
    """The stop or end-of-sequence token that ended the request."""
    finish_reason: FinishReason | None
    """None while it goes on."""

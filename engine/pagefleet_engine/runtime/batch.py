"""From a `ScheduleOutput` to index tensors: pure, no pool, no model, testable with exact values.

Shapes: T tokens of the step, S sampled rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.scoring import ScoredRows, rows_to_score
from pagefleet_engine.scheduling.output import GroupWrite, ScheduledRequest, ScheduleOutput


class Segment(NamedTuple):
    """A run of sealed frames of one precision, in order of position."""

    precision: Precision
    frames: Tensor
    num_tokens: int


class GroupRows(NamedTuple):
    """The part of a request's rows that falls into one group."""

    precision: Precision
    """What the group is or will be sealed in."""
    frames: tuple[int, ...]
    """See `memory.moves.GroupWrite`; a group that seals goes into the first of them."""
    start: int
    """Position of the group's first token."""
    num_written: int
    """Tokens of the group that earlier steps wrote."""
    first: int
    """The request's row of the group's first new token."""
    num_new: int
    quantises: bool
    """The step completes the group, and its precision is not the raw one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRows:
    """One request's share of a step: rows `first .. first + num_rows` of the batch."""

    request_id: str
    first: int
    num_rows: int
    start: int
    """Position of its first row."""
    segments: tuple[Segment, ...]
    """What earlier steps sealed."""
    open_frames: Tensor
    """Frames of the group at hand, begun by an earlier step."""
    num_open: int
    """Tokens in them."""
    groups: tuple[GroupRows, ...]
    """The groups that the step's tokens fall into."""
    raw_frames: Tensor | None
    """When every group is BF16: all frames from position 0 on, this step's included. None otherwise."""

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.num_rows)

    @property
    def end(self) -> int:
        """Position after its last row."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step for the model. Everything lies on the CPU until the runner moves it."""

    token_ids_T: Tensor
    positions_T: Tensor
    write_tokens: Tensor
    """Rows of the batch whose keys and values are kept raw, for `write_frames` and `write_rows`."""
    write_frames: Tensor
    write_rows: Tensor
    requests: tuple[RequestRows, ...]
    sample_rows_S: Tensor
    """Rows of the batch whose logits are wanted."""
    sampled: tuple[ScheduledRequest, ...]
    """The requests they belong to, in the same order."""
    scored: tuple[ScoredRows, ...] = ()
    """Rows of the batch that prompt tokens are scored by."""

    def without_sampling(self) -> Batch:
        """For ranks that do not sample."""
        return replace(self, sampled=(), scored=())


def build_batch(output: ScheduleOutput, block_size: int) -> Batch:
    """Lay the requests out one after the other. Raises ValueError when writes and tokens do not match."""
    token_ids: list[int] = []
    positions: list[int] = []
    requests: list[RequestRows] = []
    writes: list[tuple[int, int, int]] = []
    for request in output.requests:
        first = len(token_ids)
        token_ids.extend(request.token_ids)
        positions.extend(range(request.start, request.start + len(request.token_ids)))
        requests.append(_request_rows(request, first))
        writes.extend(_raw_writes(request, first, block_size))
    sampling = [(r, rows) for r, rows in zip(output.requests, requests, strict=True) if r.samples]
    return Batch(
        token_ids_T=_tensor(token_ids),
        positions_T=_tensor(positions),
        write_tokens=_tensor([row for row, _, _ in writes]),
        write_frames=_tensor([frame for _, frame, _ in writes]),
        write_rows=_tensor([row for _, _, row in writes]),
        requests=tuple(requests),
        sample_rows_S=_tensor([rows.first + rows.num_rows - 1 for _, rows in sampling]),
        sampled=tuple(request for request, _ in sampling),
        scored=rows_to_score((r, rows.first) for r, rows in zip(output.requests, requests, strict=True)),
    )


def _request_rows(request: ScheduledRequest, first: int) -> RequestRows:
    if sum(write.num_new for write in request.writes) != len(request.token_ids):
        raise ValueError(f"request {request.request_id}: writes do not cover its {len(request.token_ids)} tokens")
    opening = request.writes[0]
    begun = opening.frames if opening.num_written else ()
    return RequestRows(
        request_id=request.request_id,
        first=first,
        num_rows=len(request.token_ids),
        start=request.start,
        segments=tuple(_segments(request)),
        open_frames=_tensor(begun),
        num_open=opening.num_written,
        groups=tuple(_groups(request)),
        raw_frames=_raw_frames(request),
    )


def _segments(request: ScheduledRequest) -> Iterator[Segment]:
    for precision, run in groupby(request.context, key=lambda group: group.precision):
        groups = list(run)
        yield Segment(precision, _tensor([g.frame for g in groups]), sum(g.length for g in groups))


def _raw_frames(request: ScheduledRequest) -> Tensor | None:
    parts: tuple[Precision, ...] = (*(g.precision for g in request.context), *(w.precision for w in request.writes))
    if any(precision is not Precision.BF16 for precision in parts):
        return None
    return _tensor([*(g.frame for g in request.context), *(w.frames[0] for w in request.writes)])


def _groups(request: ScheduledRequest) -> Iterator[GroupRows]:
    for write, row in _write_rows(request):
        yield GroupRows(
            precision=write.precision,
            frames=write.frames,
            start=write.start,
            num_written=write.num_written,
            first=row,
            num_new=write.num_new,
            quantises=_quantises(write),
        )


def _raw_writes(request: ScheduledRequest, first: int, block_size: int) -> Iterator[tuple[int, int, int]]:
    """(row of the batch, frame, row of the frame) of every token whose values stay raw after this step."""
    for write, row in _write_rows(request):
        if not _quantises(write):
            for i in range(write.num_new):
                token = write.num_written + i
                yield first + row + i, write.frames[token // block_size], token % block_size


def _write_rows(request: ScheduledRequest) -> Iterator[tuple[GroupWrite, int]]:
    """Each write with the request's row of its first new token."""
    row = 0
    for write in request.writes:
        yield write, row
        row += write.num_new


def _quantises(write: GroupWrite) -> bool:
    return write.seals and write.precision is not Precision.BF16


def _tensor(values: list[int] | tuple[int, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)

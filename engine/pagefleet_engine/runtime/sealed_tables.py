"""Sealed frames of every request as growing columns, so that a decode step does not walk through all its frames.

`Context.epoch` and `Context.count` tell what is new since the step before; only that is appended.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.table import SealedGroup
from pagefleet_engine.runtime.packed import Ints
from pagefleet_engine.scheduling.output import ScheduledRequest

_MOST = 4096
"""Requests remembered: as many as can ever run. One that is forgotten is read anew when it comes again."""


class Columns(NamedTuple):
    """Frames of one request in one precision, in order of position, with the position of their first token."""

    frames: array[int]
    starts: array[int]


def no_columns() -> Columns:
    return Columns(array("i"), array("i"))


@dataclass(slots=True)
class _Known:
    owner: object
    epoch: int
    count: int = 0
    columns: dict[Precision, Columns] = field(default_factory=dict)


class SealedTables:
    """What earlier steps have sealed, by request and precision."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def of(self, request: ScheduledRequest) -> Mapping[Precision, Columns]:
        """The request's sealed frames as this step finds them. Valid until the next call for the request."""
        context = request.context
        known = self._known.get(request.request_id)
        if (
            known is None
            or known.owner is not context.owner
            or known.epoch != context.epoch
            or known.count > context.count
        ):
            known = self._known[request.request_id] = _Known(context.owner, context.epoch)
        self._known.move_to_end(request.request_id)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        append(known.columns, context.since(known.count))
        known.count = context.count
        return known.columns

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        for request_id in request_ids:
            self._known.pop(request_id, None)


def append(columns: dict[Precision, Columns], groups: Iterable[SealedGroup]) -> None:
    """Add groups at the end of the columns of their precisions."""
    for group in groups:
        frames, starts = columns.setdefault(group.precision, no_columns())
        frames.append(group.frame)
        starts.append(group.start)


def table_arrays(rows: Sequence[Columns], num_rows: int, width: int) -> list[Ints]:
    """Frames and starts `[num_rows, width]` and counts `[num_rows]`; rows beyond the given ones are empty."""
    frames, starts = np.zeros((2, num_rows, width), dtype=np.int32)
    counts = np.zeros(num_rows, dtype=np.int32)
    for index, row in enumerate(rows):
        counts[index] = len(row.frames)
        frames[index, : len(row.frames)] = row.frames
        starts[index, : len(row.starts)] = row.starts
    return [frames, starts, counts]

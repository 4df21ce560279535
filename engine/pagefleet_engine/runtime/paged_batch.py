"""From a `ScheduleOutput` to the index tables of the paged kernels: numbers on the host, packed for one copy.

The rows of a step are its decodes (requests with one token), then its chunks (requests with several). A decode writes
its token raw and reads its group from open frames; a group that it completes is sealed after the last layer. A chunk
seals as it goes, which may overwrite an open frame whose raw values its own rows still need: so each chunk is computed
together with the open tokens before it (`step_tensors.ChunkTensors`), and its groups are sealed from these rows.

Shapes: T rows, D decodes (with padding), P chunks, R rows of chunks, E rows with the open tokens before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import GroupWrite
from pagefleet_engine.memory.table import SealedGroup
from pagefleet_engine.runtime.buckets import Buckets
from pagefleet_engine.runtime.chunk_arrays import ChunkSeal, chunk_arrays
from pagefleet_engine.runtime.packed import Ints, Packed, pack
from pagefleet_engine.runtime.scoring import ScoredRows, rows_to_score
from pagefleet_engine.runtime.sealed_tables import Columns, SealedTables, append, no_columns, table_arrays
from pagefleet_engine.scheduling.output import ScheduledRequest, ScheduleOutput

_NOTHING = no_columns()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSeal:
    """Groups of one precision that decodes of this step complete."""

    precision: Precision
    frames: tuple[tuple[int, ...], ...]
    """Open frames of each group; it is sealed into the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedBatch:
    """One step. `runtime.step_tensors.unpack` says what `ints` holds, in order."""

    ints: Packed
    num_decodes: int
    """With padding."""
    num_chunks: int
    num_rows: int
    """Without padding."""
    decode_precisions: tuple[Precision, ...]
    """Of the sealed frames that decodes read; one table each."""
    chunk_precisions: tuple[Precision, ...]
    decode_seals: tuple[DecodeSeal, ...]
    chunk_seals: tuple[ChunkSeal, ...]
    sample_rows_S: Tensor
    sampled: tuple[ScheduledRequest, ...]
    """The requests that the sampled rows belong to, in the same order."""
    scored: tuple[ScoredRows, ...] = ()
    """Rows of the step that prompt tokens are scored by."""

    def without_sampling(self) -> PagedBatch:
        """For ranks that do not sample."""
        return replace(self, sampled=(), scored=())


def build_paged_batch(output: ScheduleOutput, tables: SealedTables, block_size: int, buckets: Buckets) -> PagedBatch:
    """Lay a step out. Steps that only decode are padded to a bucket."""
    tables.forget(output.ended)
    decodes = [request for request in output.requests if len(request.token_ids) == 1]
    chunks = [request for request in output.requests if len(request.token_ids) > 1]
    if chunks:
        buckets = Buckets()
    num_decodes = buckets.rows(len(decodes))
    arrays = _row_arrays(decodes, chunks, num_decodes, block_size)
    decode_tables: dict[Precision, list[Ints]] = {}
    if decodes:
        decode_tables = _tables([tables.of(request) for request in decodes], num_decodes, buckets)
        arrays += _open_arrays(decodes, num_decodes, block_size, buckets)
        arrays += [array for table in decode_tables.values() for array in table]
    chunk_tables: dict[Precision, list[Ints]] = {}
    seals: tuple[ChunkSeal, ...] = ()
    if chunks:
        chunk_tables = _tables([_seen_by_chunk(tables, request) for request in chunks], len(chunks), buckets)
        found, seals = chunk_arrays(chunks, block_size)
        arrays += [*found, *(array for table in chunk_tables.values() for array in table)]
    last = _last_rows(decodes, chunks, num_decodes)
    sampling = tuple(request for request in output.requests if request.samples)
    return PagedBatch(
        ints=pack(arrays),
        num_decodes=num_decodes,
        num_chunks=len(chunks),
        num_rows=sum(len(request.token_ids) for request in output.requests),
        decode_precisions=tuple(decode_tables),
        chunk_precisions=tuple(chunk_tables),
        decode_seals=tuple(_decode_seals(decodes)),
        chunk_seals=seals,
        sample_rows_S=torch.tensor([last[request.request_id] for request in sampling], dtype=torch.int64),
        sampled=sampling,
        scored=rows_to_score((r, last[r.request_id] - len(r.token_ids) + 1) for r in output.requests),
    )


def _row_arrays(
    decodes: Sequence[ScheduledRequest], chunks: Sequence[ScheduledRequest], num_decodes: int, block_size: int
) -> list[Ints]:
    """Token ids, positions, and the frame and slot that keep each row raw; frame -1 where none does. `[T]` each."""
    num_rows = num_decodes + sum(len(request.token_ids) for request in chunks)
    ids, positions, slots = np.zeros((3, num_rows), dtype=np.int32)
    frames = np.full(num_rows, -1, dtype=np.int32)
    single = [(request, request.writes[0]) for request in decodes]
    ids[: len(single)] = [request.token_ids[0] for request, _ in single]
    positions[: len(single)] = [request.start for request, _ in single]
    frames[: len(single)] = [write.frames[write.num_written // block_size] for _, write in single]
    slots[: len(single)] = [write.num_written % block_size for _, write in single]
    row = num_decodes
    for request in chunks:
        count = len(request.token_ids)
        ids[row : row + count] = request.token_ids
        positions[row : row + count] = np.arange(request.start, request.start + count)
        for write in request.writes:
            if not quantises(write):
                token = np.arange(write.num_written, write.num_written + write.num_new)
                frames[row : row + write.num_new] = np.asarray(write.frames, dtype=np.int32)[token // block_size]
                slots[row : row + write.num_new] = token % block_size
            row += write.num_new
    return [ids, positions, frames, slots]


def _open_arrays(
    decodes: Sequence[ScheduledRequest], num_decodes: int, block_size: int, buckets: Buckets
) -> list[Ints]:
    """Open frames `[D, W]`, and start and length `[D]` of the group at hand, this step's token included."""
    used = [-(-(request.writes[0].num_written + 1) // block_size) for request in decodes]
    # the width of a bucket must not change from step to step: no group has more open frames than this
    width = 4 if buckets.enabled else max(used)
    frames = np.zeros((num_decodes, width), dtype=np.int32)
    starts, lengths = np.zeros((2, num_decodes), dtype=np.int32)
    for row, (request, count) in enumerate(zip(decodes, used, strict=True)):
        write = request.writes[0]
        frames[row, :count] = write.frames[:count]
        starts[row], lengths[row] = write.start, write.num_written + 1
    return [frames, starts, lengths]


def _tables(
    requests: Sequence[Mapping[Precision, Columns]], num_rows: int, buckets: Buckets
) -> dict[Precision, list[Ints]]:
    """One table for each precision that somebody has frames in."""
    tables = {}
    for precision in Precision:
        rows = [columns.get(precision, _NOTHING) for columns in requests]
        longest = max((len(row.frames) for row in rows), default=0)
        if longest:
            tables[precision] = table_arrays(rows, num_rows, buckets.width(longest))
    return tables


def _seen_by_chunk(tables: SealedTables, request: ScheduledRequest) -> dict[Precision, Columns]:
    """Sealed frames of earlier steps, and those that this one seals before the chunk's last group."""
    columns = {p: Columns(known.frames[:], known.starts[:]) for p, known in tables.of(request).items()}
    append(columns, (SealedGroup(w.frames[0], w.start, w.length, w.precision) for w in request.writes[:-1]))
    return columns


def _decode_seals(decodes: Sequence[ScheduledRequest]) -> Iterator[DecodeSeal]:
    full = [write for request in decodes for write in request.writes if quantises(write)]
    for precision in dict.fromkeys(write.precision for write in full):
        yield DecodeSeal(precision=precision, frames=tuple(w.frames for w in full if w.precision is precision))


def _last_rows(
    decodes: Sequence[ScheduledRequest], chunks: Sequence[ScheduledRequest], num_decodes: int
) -> dict[str, int]:
    """The last row of each request."""
    last = {request.request_id: row for row, request in enumerate(decodes)}
    ends = accumulate((len(request.token_ids) for request in chunks), initial=num_decodes)
    next(ends)
    return last | {request.request_id: end - 1 for request, end in zip(chunks, ends, strict=True)}


def quantises(write: GroupWrite) -> bool:
    """The step completes the group, and its precision is not the raw one."""
    return write.seals and write.precision is not Precision.BF16

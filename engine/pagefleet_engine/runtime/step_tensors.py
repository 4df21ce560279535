"""A packed step on its device, taken apart again: what the paged kernels are called with.

Shapes: T rows, D decodes, P chunks, R rows of chunks, E rows with the open tokens before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.kv_cache import kernel_precision
from pagefleet_engine.runtime.packed import Packed
from pagefleet_engine.runtime.paged_batch import PagedBatch
from pagefleet_kernels.tables import ChunkTable, FrameTable, OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTensors:
    """What D decodes read."""

    sealed: tuple[FrameTable, ...]
    open: OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTensors:
    """Groups of one precision, each sealed from extended rows into one frame."""

    precision: Precision
    targets: Tensor
    rows: Tensor
    """`[groups * tokens of a group]`, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTensors:
    """What P chunks read, seal and attend to. Extended rows are the open tokens of a chunk's first group, then its own
    ones."""

    open_frames: Tensor
    open_slots: Tensor
    source: Tensor
    """`[E]`: the extended rows in (open tokens of all chunks, rows of all chunks)."""
    own: Tensor
    """`[R]`: the chunks' rows among the extended ones."""
    table: ChunkTable
    """Of the extended rows: open tokens are rows here, so the kernel has none to look up."""
    seals: tuple[SealTensors, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTensors:
    """One step."""

    token_ids_T: Tensor
    positions_T: Tensor
    write_frames_T: Tensor
    write_slots_T: Tensor
    num_decodes: int
    decodes: DecodeTensors | None
    chunks: ChunkTensors | None


def unpack(batch: PagedBatch, ints: Packed) -> StepTensors:
    """Views of `ints`, which is `batch.ints` wherever it was copied to."""
    views = iter(ints.views())
    ids, positions, frames, slots = islice(views, 4)
    return StepTensors(
        token_ids_T=ids,
        positions_T=positions,
        write_frames_T=frames,
        write_slots_T=slots,
        num_decodes=batch.num_decodes,
        decodes=_decodes(batch, views) if batch.num_decodes else None,
        chunks=_chunks(batch, views) if batch.num_chunks else None,
    )


def _decodes(batch: PagedBatch, views: Iterator[Tensor]) -> DecodeTensors:
    own = _open(views)
    return DecodeTensors(open=own, sealed=_sealed(batch.decode_precisions, views))


def _chunks(batch: PagedBatch, views: Iterator[Tensor]) -> ChunkTensors:
    open_frames, open_slots, source, own, offsets, positions, group_starts = islice(views, 7)
    no_open = _open(views)
    seals = tuple(
        SealTensors(precision=seal.precision, targets=next(views), rows=next(views)) for seal in batch.chunk_seals
    )
    table = ChunkTable(
        offsets=offsets,
        positions=positions,
        group_starts=group_starts,
        open=no_open,
        sealed=_sealed(batch.chunk_precisions, views),
    )
    return ChunkTensors(
        open_frames=open_frames, open_slots=open_slots, source=source, own=own, table=table, seals=seals
    )


def _open(views: Iterator[Tensor]) -> OpenTable:
    frames, starts, lengths = islice(views, 3)
    return OpenTable(frames=frames, starts=starts, lengths=lengths)


def _sealed(precisions: tuple[Precision, ...], views: Iterator[Tensor]) -> tuple[FrameTable, ...]:
    tables = []
    for precision in precisions:
        frames, starts, counts = islice(views, 3)
        tables.append(FrameTable(precision=kernel_precision(precision), frames=frames, starts=starts, counts=counts))
    return tuple(tables)

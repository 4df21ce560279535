"""The index arrays of a step's chunks, each extended by the open tokens that earlier steps wrote before it.

Shapes: P chunks, R rows of chunks, O open tokens before them, E = O + R, L tokens of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.packed import Ints
from pagefleet_engine.scheduling.output import ScheduledRequest

Indices = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSeal:
    """Groups of one precision that chunks of this step complete; `ints` holds their targets and their rows."""

    precision: Precision
    num_groups: int


def chunk_arrays(chunks: Sequence[ScheduledRequest], block_size: int) -> tuple[list[Ints], tuple[ChunkSeal, ...]]:
    """In this order, and what is sealed:

    open frames `[O]` and slots `[O]`; source `[E]`: each extended row in (open tokens, chunk rows); own `[R]`: the
    chunk's rows among the extended ones; offsets `[P + 1]`, positions `[E]`, group starts `[E]`; no open tokens, as
    frames `[P, 1]`, starts `[P]`, lengths `[P]`; then targets `[G]` and rows `[G * L]` of every seal.
    """
    num_open = sum(chunk.writes[0].num_written for chunk in chunks)
    open_frames, open_slots, source, own, positions, group_starts = (list[Indices]() for _ in range(6))
    targets: dict[Precision, list[int]] = {}
    rows: dict[Precision, list[Indices]] = {}
    offsets, opened, fresh = [0], 0, num_open
    for chunk in chunks:
        first, opening = offsets[-1], chunk.writes[0]
        begun, count = np.arange(opening.num_written), len(chunk.token_ids)
        open_frames.append(np.asarray(opening.frames, dtype=np.int32)[begun // block_size])
        open_slots.append(begun % block_size)
        source += [opened + begun, fresh + np.arange(count)]
        own.append(first + begun.size + np.arange(count))
        positions.append(opening.start + np.arange(begun.size + count))
        for write in chunk.writes:
            group_starts.append(np.full(write.num_written + write.num_new, write.start))
            if write.seals and write.precision is not Precision.BF16:
                targets.setdefault(write.precision, []).append(write.frames[0])
                group = first + write.start - opening.start + np.arange(write.length)
                rows.setdefault(write.precision, []).append(group)
        opened, fresh = opened + begun.size, fresh + count
        offsets.append(first + begun.size + count)
    nothing = [np.zeros((len(chunks), 1)), np.zeros(len(chunks)), np.zeros(len(chunks))]
    flat = [open_frames, open_slots, source, own, [np.array(offsets)], positions, group_starts]
    arrays = [np.concatenate(parts) for parts in flat] + nothing
    for precision, frames in targets.items():
        arrays += [np.array(frames), np.concatenate(rows[precision])]
    seals = tuple(ChunkSeal(precision=p, num_groups=len(frames)) for p, frames in targets.items())
    return [array.astype(np.int32) for array in arrays], seals

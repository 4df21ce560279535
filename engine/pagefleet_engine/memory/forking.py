"""Forks: a request that begins like another one shares its frames.

Sealed groups are shared for good. Open frames are shared until one side writes into them; `memory.writes` then copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.memory.table import FrameTable, OpenGroup
from pagefleet_engine.memory.tiers import Tiers
from pagefleet_engine.request import Request


def fork(parent: Request, child: Request, tiers: Tiers, *, block_size: int) -> None:
    """Give an empty child all groups, and the written part of the open one, that hold its own beginning.

    The child's last token stays to be computed. Does nothing where the two have nothing to share.
    """
    source = parent.table
    if source.swapped is not None or source.pending or child.num_computed or not _alike(parent, child):
        return
    limit = _common_length(parent.token_ids[: parent.num_computed], child.token_ids[:-1])
    limit = min(limit, child.num_reusable)
    num_groups = 0
    while num_groups < len(source.sealed) and _end(source, num_groups) <= limit:
        num_groups += 1
    _share_sealed(source, child.table, num_groups, tiers)
    if source.open is not None and num_groups == len(source.sealed) and limit > source.open.start:
        _share_open(source.open, child.table, limit - source.open.start, tiers, block_size)
    child.table.runs = [run for run in source.runs if run.start < child.table.begun_until]
    child.table.demoted = source.demoted and num_groups > 0


def _alike(parent: Request, child: Request) -> bool:
    return (parent.precision, parent.adapter, parent.cache_salt) == (child.precision, child.adapter, child.cache_salt)


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(index for index in range(shorter) if a[index] != b[index])


def _end(table: FrameTable, index: int) -> int:
    return table.sealed[index].start + table.sealed[index].length


def _share_sealed(source: FrameTable, target: FrameTable, num_groups: int, tiers: Tiers) -> None:
    if not num_groups:
        return
    target.sealed = source.sealed[:num_groups]
    target.keys = source.keys[:num_groups]
    target.num_sealed_tokens = target.begun_until = _end(source, num_groups - 1)
    for group in target.sealed:
        tiers.hold(group.frame)


def _share_open(source: OpenGroup, target: FrameTable, num_tokens: int, tiers: Tiers, block_size: int) -> None:
    frames = source.frames[: -(-num_tokens // block_size)]
    for frame in frames:
        tiers.hold(frame)
    target.open = OpenGroup(
        start=source.start, length=source.length, precision=source.precision, frames=frames, num_tokens=num_tokens
    )
    target.begun_until = source.start + source.length

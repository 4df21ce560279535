"""Preemption by swap: a request's own frames move to host memory and back, shared ones stay where they are."""

from __future__ import annotations

from pagefleet_engine.memory.table import FrameTable, SwappedFrames
from pagefleet_engine.memory.tiers import Tiers


def num_own_frames(table: FrameTable, tiers: Tiers) -> int:
    """Frames that this table alone holds, and that a swap would move."""
    return sum(1 for frame in table.held_frames() if tiers.pool.holders(frame) == 1)


def can_swap_out(table: FrameTable, tiers: Tiers) -> bool:
    """Host memory has room for the request's own frames, and no copy of this step still reads one of them."""
    if any(tiers.pool.is_read_by_copy(frame) for frame in table.held_frames()):
        return False
    return num_own_frames(table, tiers) <= tiers.num_slots_available


def swap_out(table: FrameTable, tiers: Tiers) -> None:
    """Move the request's own frames to host memory; `can_swap_out` has said that it is possible."""
    slots = iter(tiers.take_slots(num_own_frames(table, tiers)))
    open_frames = table.open.frames if table.open is not None else []
    sealed = {i: next(slots) for i, group in enumerate(table.sealed) if tiers.pool.holders(group.frame) == 1}
    opened = {i: next(slots) for i, frame in enumerate(open_frames) if tiers.pool.holders(frame) == 1}
    for index, slot in sealed.items():
        tiers.send(table.sealed[index].frame, slot)
    for index, slot in opened.items():
        tiers.send(open_frames[index], slot)
    table.swapped = SwappedFrames(sealed=sealed, open=opened)
    tiers.counters.swapped_out += len(sealed) + len(opened)


def num_frames_away(table: FrameTable) -> int:
    """Frames that `swap_in` takes."""
    return sum(1 for _ in table.held_slots())


def swap_in(table: FrameTable, tiers: Tiers) -> None:
    """Copy the frames back into free ones, `num_frames_away` of them. They can be read from the next step on."""
    away = table.swapped
    assert away is not None
    for index, slot in away.sealed.items():
        group = table.sealed[index]
        table.sealed[index] = group._replace(frame=tiers.bring(slot, group.precision))
    for index, slot in away.open.items():
        assert table.open is not None
        table.open.frames[index] = tiers.bring(slot, None)
    tiers.counters.swapped_in += len(away.sealed) + len(away.open)
    table.swapped = None
    table.epoch += 1

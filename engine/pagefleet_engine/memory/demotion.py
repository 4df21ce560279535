"""Demotion: sealed BF16 frames of one request become fewer FP8 frames, in place, to make room without a swap.

The request's later tokens were computed with the BF16 values, so what it holds can no longer be shared: the demoted
frames and all that follow leave the prefix cache. Whether a request may be demoted at all is the scheduler's decision.
"""

from __future__ import annotations

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FrameState
from pagefleet_engine.memory.moves import Demote
from pagefleet_engine.memory.table import FrameTable, SealedGroup
from pagefleet_engine.memory.tiers import Tiers

TARGET = Precision.FP8_E4M3


def find_demotable(table: FrameTable, tiers: Tiers, sizes: GroupSizes) -> int | None:
    """Index of the first run of BF16 groups that fits exactly into one FP8 frame and that only this table holds."""
    num_parts, rest = divmod(sizes.lengths[TARGET], sizes.lengths[Precision.BF16])
    if rest or num_parts < 2:
        return None
    found = 0
    for index, group in enumerate(table.sealed):
        own = (
            group.precision is Precision.BF16
            and tiers.pool.holders(group.frame) == 1
            and tiers.pool.state(group.frame) is FrameState.SEALED
        )
        found = found + 1 if own else 0
        if found == num_parts:
            return index - num_parts + 1
    return None


def demote(table: FrameTable, index: int, tiers: Tiers, sizes: GroupSizes) -> None:
    """Demote the run that `find_demotable` found at `index`; all its frames but the first become free."""
    num_parts = sizes.lengths[TARGET] // sizes.lengths[Precision.BF16]
    parts = table.sealed[index : index + num_parts]
    for group in table.sealed[index:]:
        tiers.forget(group.frame)
    frames = tuple(group.frame for group in parts)
    for frame in frames[1:]:
        tiers.drop(frame)
    tiers.pool.demote(frames[0], TARGET)
    merged = SealedGroup(frames[0], parts[0].start, sum(group.length for group in parts), TARGET)
    table.sealed[index : index + num_parts] = [merged]
    del table.keys[index:]
    table.lookup_keys.clear()
    table.epoch += 1
    table.replay_demoted(merged.start, merged.start + merged.length, TARGET)
    tiers.moves.demote.append(Demote(frames, merged.length, TARGET))
    tiers.counters.demoted += num_parts

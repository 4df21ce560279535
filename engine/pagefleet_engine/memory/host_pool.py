"""Host frames (slots) for swapped requests and for prefix frames that were evicted from the pool.

A slot has one owner at a time: a request or the prefix cache. Slots are taken last in, first out. A slot that is read
in the step at hand can be taken again only after it, because a step writes slots before it reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagefleet_engine.memory.frame_pool import FrameError


class HostPool:
    """A fixed number of slots; may be none."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._taken: set[int] = set()
        self._being_read: list[int] = []

    @property
    def num_free(self) -> int:
        """Slots that `take` can hand out now."""
        return len(self._free)

    def take(self) -> int:
        """A free slot. Raises `FrameError` when there is none."""
        if not self._free:
            raise FrameError("no host slot is free")
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Nobody needs what is in the slot, and nothing reads it in this step."""
        self._give_up(slot)
        self._free.append(slot)

    def free_after_step(self, slot: int) -> None:
        """The slot is copied back into the pool in this step."""
        self._give_up(slot)
        self._being_read.append(slot)

    def settle(self) -> None:
        """The step has ended: what was being read has been read."""
        self._free.extend(self._being_read)
        self._being_read.clear()

    def check_invariants(self, owned: Iterable[int]) -> None:
        """Raises `FrameError` unless free, owned and being read are all slots, each once."""
        everything = sorted([*self._free, *self._being_read, *owned])
        if everything != list(range(self.num_slots)):
            raise FrameError(f"host slots are not each in one place: {everything} of {self.num_slots}")

    def _give_up(self, slot: int) -> None:
        if slot not in self._taken:
            raise FrameError(f"host slot {slot} is not taken")
        self._taken.remove(slot)

"""Pool, host memory and prefix cache together: who makes room for whom.

    pool full  → the cached frame that nobody holds and was used least recently goes to host memory, or is dropped
    host full  → the cached slot used least recently is dropped, for a newer prefix or for a preempted request

Moves are collected here, because giving up a slot in the step that writes it has to take the move back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.counters import MemoryCounters
from pagefleet_engine.memory.frame_pool import FrameError, FramePool, FrameState
from pagefleet_engine.memory.host_pool import HostPool
from pagefleet_engine.memory.moves import Moves, SwapIn
from pagefleet_engine.memory.prefix_cache import CacheEntry, PrefixCache
from pagefleet_engine.memory.table import FrameTable


class Tiers:
    """Frames and slots with what is cached in them."""

    def __init__(self, pool: FramePool, host: HostPool, cache: PrefixCache) -> None:
        self.pool = pool
        self.host = host
        self.cache = cache
        self.moves = Moves()
        self.counters = MemoryCounters()

    @property
    def num_available(self) -> int:
        """Frames that can be had without taking any from a request."""
        return self.pool.num_free + self.cache.num_idle

    @property
    def num_slots_available(self) -> int:
        """Slots that a preempted request can have."""
        return self.host.num_free + self.cache.num_in_host

    def make_free(self, num_frames: int) -> bool:
        """Have this many frames free, by evicting cached frames that nobody holds. False when that is not enough."""
        while self.pool.num_free < num_frames:
            entry = self.cache.oldest_idle()
            if entry is None:
                return False
            self._evict(entry)
        return True

    def hold(self, frame: int) -> None:
        """One more request holds this frame."""
        self.cache.make_held(frame)
        self.pool.hold(frame)

    def drop(self, frame: int) -> None:
        """One request less holds this frame; the last one frees it unless it is cached."""
        if self.pool.drop(frame) and not self.cache.make_idle(frame):
            self.pool.free(frame)

    def take_slots(self, num_slots: int) -> list[int]:
        """Slots for a preempted request, `num_slots_available` of them at most; cached slots are dropped for it."""
        while self.host.num_free < num_slots:
            self._drop_oldest_in_host()
        return [self.host.take() for _ in range(num_slots)]

    def free_slot(self, slot: int) -> None:
        """Give up a slot; if it was to be written in this step, it no longer is."""
        self.moves.swap_out.pop(slot, None)
        self.host.free(slot)

    def send(self, frame: int, slot: int) -> None:
        """Copy a frame, which one request alone holds, to a slot, and let it go."""
        self.forget(frame)
        self.pool.drop(frame)
        self.pool.depart(frame)
        self.moves.swap_out[slot] = frame

    def bring(self, slot: int, becomes: Precision | None) -> int:
        """Copy a slot back into a free frame, held once: sealed in a precision, or open."""
        frame = self.pool.take_arriving(becomes)
        self.moves.swap_in.append(SwapIn(slot, frame))
        self.host.free_after_step(slot)
        return frame

    def offer(self, entry: CacheEntry) -> None:
        """Let the cache know a sealed frame that a request holds."""
        slot = self.cache.insert(entry)
        if slot is not None:
            self.free_slot(slot)

    def forget(self, frame: int) -> None:
        """Let the cache forget a frame that a request holds."""
        entry = self.cache.entry_of(frame)
        if entry is not None:
            self.cache.remove(entry)

    def collect_moves(self) -> Moves:
        """The moves of the step at hand, once."""
        moves, self.moves = self.moves, Moves()
        return moves

    def settle(self) -> None:
        """The step has ended."""
        self.pool.settle()
        self.host.settle()

    def check_invariants(self, tables: Iterable[FrameTable]) -> None:
        """Raises `FrameError` unless these tables and the cache account for every frame and every slot."""
        held: Counter[int] = Counter()
        slots: list[int] = []
        for table in tables:
            held.update(table.held_frames())
            slots.extend(table.held_slots())
        self.pool.check_invariants(held)
        self.host.check_invariants([*slots, *(entry.slot for entry in self.cache.entries() if entry.slot is not None)])
        for frame in range(self.pool.num_frames):
            sealed_alone = self.pool.state(frame) is FrameState.SEALED and not held[frame]
            if sealed_alone != self.cache.is_idle(frame):
                raise FrameError(f"frame {frame} is {self.pool.state(frame)}, held by {held[frame]}, idle by mistake")
        for entry in self.cache.entries():
            if (entry.frame is None) == (entry.slot is None):
                raise FrameError(f"cache entry {entry} must be in one tier")
            if entry.frame is not None and self.pool.state(entry.frame) in (FrameState.FREE, FrameState.OPEN):
                raise FrameError(f"cached frame {entry.frame} is {self.pool.state(entry.frame)}")

    def _evict(self, entry: CacheEntry) -> None:
        frame = entry.frame
        assert frame is not None
        self.counters.evicted += 1
        if not self._make_slot_for_prefix():
            self.cache.remove(entry)
            self.pool.free(frame)
            return
        slot = self.host.take()
        self.cache.move_to_host(entry, slot)
        self.pool.depart(frame)
        self.moves.swap_out[slot] = frame
        self.counters.evicted_to_host += 1

    def _make_slot_for_prefix(self) -> bool:
        if self.host.num_free:
            return True
        oldest = self.cache.oldest_in_host()
        # What came in this step is as new as what would displace it.
        if oldest is None or oldest.slot in self.moves.swap_out:
            return False
        self._drop_oldest_in_host()
        return True

    def _drop_oldest_in_host(self) -> None:
        entry = self.cache.oldest_in_host()
        if entry is None or entry.slot is None:
            raise FrameError("no cached host slot is left to drop")
        slot = entry.slot
        self.cache.remove(entry)
        self.free_slot(slot)
        self.counters.evicted_from_host += 1

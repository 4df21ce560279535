"""The KV memory as the scheduler sees it: what a request would take, taking it, and giving it back.

Questions change nothing; commands say what they change. The moves that a step needs are collected until
`collect_moves`; frames and slots that are moving can be used again after `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagefleet_engine.contract.kv import GroupSizes, Layout
from pagefleet_engine.memory import demotion, forking, swapping
from pagefleet_engine.memory.counters import MemoryCounters
from pagefleet_engine.memory.frame_pool import FramePool, FrameState
from pagefleet_engine.memory.host_pool import HostPool
from pagefleet_engine.memory.moves import Moves
from pagefleet_engine.memory.prefix import PrefixReuse
from pagefleet_engine.memory.prefix_cache import CacheEntry, Digest, PrefixCache
from pagefleet_engine.memory.tiers import Tiers
from pagefleet_engine.memory.writes import FrameWriter, Piece, plan_pieces
from pagefleet_engine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What admitting a request would take."""

    hits: tuple[CacheEntry, ...]
    """Cached groups that it can start with."""
    num_frames: int
    """Frames to be taken from `num_available`: for hits in host memory, for hits that nobody holds, and for the
    tokens that are left to compute."""


class KVMemory:
    """Pool, host memory, prefix cache and the tables of requests. Holds no list of requests: the scheduler does."""

    def __init__(
        self, *, num_frames: int, layout: Layout, num_slots: int = 0, digest: Digest | None = None, model: str = ""
    ) -> None:
        """Without a `digest` for its keys there is no prefix cache."""
        self.pool = FramePool(num_frames)
        self.host = HostPool(num_slots)
        self.sizes = GroupSizes(layout)
        cache = PrefixCache(digest or bytes)
        self._tiers = Tiers(self.pool, self.host, cache)
        self._writer = FrameWriter(self.pool, self.sizes)
        self._prefix = PrefixReuse(self._tiers, self.sizes, model=model) if digest is not None else None

    @property
    def counters(self) -> MemoryCounters:
        return self._tiers.counters

    @property
    def num_available(self) -> int:
        """Frames that can be had without taking any from a request."""
        return self._tiers.num_available

    def make_free(self, num_frames: int) -> bool:
        """Evict cached frames until this many are free. False when that is not enough."""
        return self._tiers.make_free(num_frames)

    # Writing

    def plan(self, request: Request, num_new: int) -> list[Piece]:
        """The groups that the request's next `num_new` tokens fall into."""
        return plan_pieces(request.table, num_new, self.sizes, request.precision)

    def frames_needed(self, request: Request, pieces: Sequence[Piece]) -> int:
        """Free frames that writing these pieces in one step takes."""
        return self._writer.frames_needed(request.table, pieces)

    def longest_fit(self, request: Request, pieces: Sequence[Piece]) -> int:
        """How many tokens of `pieces` the free frames can take."""
        return self._writer.longest_fit(request.table, pieces)

    def write(self, request: Request, pieces: Sequence[Piece]) -> None:
        """Take the frames for these pieces; as many as `frames_needed` says are free."""
        copies = self._writer.write(request.table, pieces)
        self._tiers.moves.copy += copies
        self.counters.copied += len(copies)

    def commit(self, request: Request) -> None:
        """The step that wrote for this request has ended."""
        sealed = self._writer.commit(request.table)
        if sealed and self._prefix is not None:
            self._prefix.publish(request, sealed)

    def settle(self) -> None:
        """The step has ended: what was moving has arrived."""
        self._tiers.settle()

    def collect_moves(self) -> Moves:
        """The moves of the step at hand, once."""
        return self._tiers.collect_moves()

    # Coming and going

    def plan_admission(self, request: Request) -> Admission:
        """What the request can share, and what it takes until its last known token is computed."""
        hits = self._prefix.match(request) if self._prefix is not None and not request.num_computed else ()
        not_held = sum(1 for entry in hits if entry.frame is None or not self.pool.holders(entry.frame))
        skipped = sum(len(entry.group.token_ids) for entry in hits)
        return Admission(hits=hits, num_frames=not_held + self._frames_to_compute(request, skipped))

    def admit(self, request: Request, admission: Admission) -> None:
        """Share the hits; those in host memory are copied back. `num_frames` of the admission are available."""
        if self._prefix is not None and not request.num_computed:
            self._prefix.adopt(request, admission.hits)

    def is_arriving(self, request: Request) -> bool:
        """Some of its frames are still being copied from host memory, so that it cannot compute in this step."""
        return any(self.pool.state(frame) is FrameState.IN_TRANSFER for frame in request.table.held_frames())

    def fork(self, parent: Request, child: Request) -> None:
        """Let a child without frames share the beginning that it has in common with the parent."""
        forking.fork(parent, child, self._tiers, block_size=self.sizes.block_size)

    def _frames_to_compute(self, request: Request, skipped: int) -> int:
        """Frames that all known tokens but the first `skipped` take, computed in one step."""
        table, num_new = request.table, request.num_uncomputed - skipped
        if table.open is None and not table.begun_until:
            return self.sizes.frames(num_new, request.precision)
        pieces = plan_pieces(table, num_new, self.sizes, request.precision, skipped=skipped)
        return self.frames_needed(request, pieces)

    def release(self, request: Request) -> None:
        """Give back every frame and slot that the request holds. Harmless when it holds none."""
        # The tail first, so that it is evicted first.
        for frame in reversed(list(request.table.held_frames())):
            self._tiers.drop(frame)
        for slot in request.table.held_slots():
            self._tiers.free_slot(slot)
        request.table.clear()

    def forget(self, request: Request) -> None:
        """Nobody may share what this request holds any more."""
        for frame in request.table.held_frames():
            self._tiers.forget(frame)

    # Under pressure

    def try_swap_out(self, request: Request) -> bool:
        """Move the request's own frames to host memory. False, and nothing changed, when there is no room."""
        if not swapping.can_swap_out(request.table, self._tiers):
            return False
        swapping.swap_out(request.table, self._tiers)
        return True

    def num_frames_away(self, request: Request) -> int:
        """Frames that `swap_in` takes."""
        return swapping.num_frames_away(request.table)

    def swap_in(self, request: Request) -> None:
        """Copy a swapped request's frames back. It can compute from the next step on."""
        swapping.swap_in(request.table, self._tiers)
        if self._prefix is not None:
            self._prefix.publish_again(request)

    def try_demote(self, request: Request) -> bool:
        """Make one FP8 frame of some of the request's BF16 frames. False when it has none that can be demoted."""
        index = demotion.find_demotable(request.table, self._tiers, self.sizes)
        if index is None:
            return False
        demotion.demote(request.table, index, self._tiers, self.sizes)
        return True

    def check_invariants(self, requests: Iterable[Request]) -> None:
        """Raises `FrameError` unless every frame and slot is accounted for by exactly these requests and the cache."""
        self._tiers.check_invariants(request.table for request in requests)

"""The KV memory as the scheduler sees it: what a request would take, taking it, and giving it back.

Questions change nothing; commands say what they change. Moves that a step needs are collected until `collect_moves`.
Token ids are looked at for the prefix cache only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pagefleet_engine.contract.kv import GroupSizes, Layout
from pagefleet_engine.memory.frame_pool import FramePool
from pagefleet_engine.memory.moves import CopyFrame
from pagefleet_engine.memory.writes import FrameWriter, Piece, plan_pieces
from pagefleet_engine.request import Request


@dataclass(slots=True)
class Moves:
    """What has to be moved before the step at hand computes."""

    copy: list[CopyFrame] = field(default_factory=list)


class KVMemory:
    """Frame pool and tables. Holds no list of requests: the scheduler owns those."""

    def __init__(self, *, num_frames: int, layout: Layout) -> None:
        self.pool = FramePool(num_frames)
        self.sizes = GroupSizes(layout)
        self._writer = FrameWriter(self.pool, self.sizes)
        self._moves = Moves()

    @property
    def num_available(self) -> int:
        """Frames that can be had without taking anything from a request."""
        return self.pool.num_free

    def plan(self, request: Request, num_new: int) -> list[Piece]:
        """The groups that the request's next `num_new` tokens fall into."""
        return plan_pieces(request.table, num_new, self.sizes, request.precision)

    def frames_needed(self, request: Request, pieces: Sequence[Piece]) -> int:
        """Frames that writing these pieces in one step takes."""
        return self._writer.frames_needed(request.table, pieces)

    def frames_to_finish_prompt(self, request: Request) -> int:
        """Frames that all tokens known but not computed will take."""
        return self.frames_needed(request, self.plan(request, request.num_uncomputed))

    def longest_fit(self, request: Request, pieces: Sequence[Piece]) -> int:
        """How many tokens of `pieces` the free frames can take."""
        return self._writer.longest_fit(request.table, pieces)

    def make_free(self, num_frames: int) -> bool:
        """Try to have this many frames free without taking any from a request."""
        return self.pool.num_free >= num_frames

    def write(self, request: Request, pieces: Sequence[Piece]) -> None:
        """Take the frames for these pieces; `make_free` has said that they are there."""
        self._moves.copy += self._writer.write(request.table, pieces)

    def commit(self, request: Request) -> None:
        """The step that wrote for this request has ended."""
        self._writer.commit(request.table)

    def collect_moves(self) -> Moves:
        """The moves of the step at hand, once."""
        moves, self._moves = self._moves, Moves()
        return moves

    def settle(self) -> None:
        """The step has ended: frames and slots that were moving can be used."""
        self.pool.settle()

    def release(self, request: Request) -> None:
        """Give back every frame and slot that the request holds. Harmless when it holds none."""
        for frame in reversed(list(request.table.held_frames())):
            if self.pool.drop(frame):
                self.pool.free(frame)
        request.table.clear()

    def check_invariants(self, requests: Iterable[Request]) -> None:
        """Raises `FrameError` unless every frame is accounted for by exactly these requests."""
        held: Counter[int] = Counter()
        for request in requests:
            held.update(request.table.held_frames())
        self.pool.check_invariants(held)

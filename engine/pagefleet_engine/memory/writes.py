"""Which groups the next tokens of a request fall into, and which frames that takes.

`plan_pieces` only looks; `frames_needed` counts; `FrameWriter.write` takes the frames and records the writes in the
table as pending; `FrameWriter.commit` makes them part of the table after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FramePool
from pagefleet_engine.memory.moves import CopyFrame, GroupWrite
from pagefleet_engine.memory.table import FrameTable, OpenGroup, SealedGroup


class Piece(NamedTuple):
    """The part of a run of new tokens that falls into one group."""

    start: int
    length: int
    precision: Precision
    num_written: int
    num_new: int

    @property
    def seals(self) -> bool:
        return self.num_written + self.num_new == self.length


def plan_pieces(
    table: FrameTable, num_new: int, sizes: GroupSizes, current: Precision, *, skipped: int = 0
) -> list[Piece]:
    """Cut the next `num_new` tokens of a request at group borders.

    `skipped` tokens of an empty table are taken as sealed already: what a prefix hit would bring.
    """
    pieces = []
    if (group := table.open) is not None:
        taken = min(group.length - group.num_tokens, num_new)
        pieces.append(Piece(group.start, group.length, group.precision, group.num_tokens, taken))
        start, num_new = group.start + group.length, num_new - taken
    else:
        start = table.num_sealed_tokens + skipped
    while num_new:
        precision = table.precision_at(start, current)
        length = sizes.lengths[precision]
        taken = min(length, num_new)
        pieces.append(Piece(start, length, precision, 0, taken))
        start, num_new = start + length, num_new - taken
    return pieces


def shared_frames_written(table: FrameTable, piece: Piece, pool: FramePool, block_size: int) -> list[int]:
    """Indices of the open frames that this piece writes into although another fork holds them too."""
    group = table.open
    if group is None or piece.start != group.start:
        return []
    last = piece.num_written // block_size
    written = {0} if piece.seals else set()
    if last < len(group.frames):
        written.add(last)
    return [index for index in sorted(written) if pool.holders(group.frames[index]) > 1]


class FrameWriter:
    """Takes frames for new tokens, and seals."""

    def __init__(self, pool: FramePool, sizes: GroupSizes) -> None:
        self._pool = pool
        self._sizes = sizes

    def frames_needed(self, table: FrameTable, pieces: Sequence[Piece]) -> int:
        """Free frames that `write` will take."""
        block_size = self._sizes.block_size
        needed = len(shared_frames_written(table, pieces[0], self._pool, block_size))
        for piece in pieces:
            if not piece.seals:
                written, total = piece.num_written, piece.num_written + piece.num_new
                needed += self._sizes.open_frames(total) - self._sizes.open_frames(written)
            elif not piece.num_written:
                needed += 1
        return needed

    def longest_fit(self, table: FrameTable, pieces: Sequence[Piece]) -> int:
        """How many tokens of these pieces, from the first on, the free frames can take; 0 when none."""
        fitting, free = 0, self._pool.num_free
        for piece in pieces:
            needed = self.frames_needed(table, [piece])
            if needed > free:
                return fitting + self._longest_part(table, piece, free)
            free -= needed
            fitting += piece.num_new
        return fitting

    def write(self, table: FrameTable, pieces: Sequence[Piece]) -> list[CopyFrame]:
        """Take the frames and set `table.pending`. Returns the copies that shared open frames make necessary."""
        copies = self._unshare(table, pieces[0])
        table.pending = tuple(self._write_piece(table, piece) for piece in pieces)
        return copies

    def commit(self, table: FrameTable) -> Sequence[SealedGroup]:
        """The step has ended: the pending writes are done. Returns the groups that it sealed."""
        sealed = []
        for write in table.pending:
            if not write.seals:
                total = write.num_written + write.num_new
                frames = list(write.frames)
                table.open = OpenGroup(
                    start=write.start, length=write.length, precision=write.precision, frames=frames, num_tokens=total
                )
                continue
            self._pool.seal(write.frames[0], write.precision)
            for frame in write.frames[1:]:
                if self._pool.drop(frame):
                    self._pool.free(frame)
            sealed.append(SealedGroup(write.frames[0], write.start, write.length, write.precision))
            table.open = None
            table.num_sealed_tokens = write.start + write.length
        table.sealed.extend(sealed)
        table.pending = ()
        return sealed

    def _longest_part(self, table: FrameTable, piece: Piece, free: int) -> int:
        for num_new in range(piece.num_new - 1, 0, -1):
            if self.frames_needed(table, [piece._replace(num_new=num_new)]) <= free:
                return num_new
        return 0

    def _unshare(self, table: FrameTable, piece: Piece) -> list[CopyFrame]:
        copies = []
        for index in shared_frames_written(table, piece, self._pool, self._sizes.block_size):
            assert table.open is not None
            source = table.open.frames[index]
            target = self._pool.take()
            self._pool.drop(source)
            self._pool.read_by_copy(source)
            table.open.frames[index] = target
            copies.append(CopyFrame(source, target))
        return copies

    def _write_piece(self, table: FrameTable, piece: Piece) -> GroupWrite:
        frames = list(table.open.frames) if piece.num_written and table.open is not None else []
        total = piece.num_written + piece.num_new
        wanted = (len(frames) or 1) if piece.seals else self._sizes.open_frames(total)
        while len(frames) < wanted:
            frames.append(self._pool.take())
        table.begin_group(piece.start, piece.length, piece.precision)
        return GroupWrite(
            piece.start, piece.length, piece.precision, tuple(frames), piece.seals, piece.num_written, piece.num_new
        )

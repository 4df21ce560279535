"""The frames of one request, group by group.

A group is a run of consecutive tokens that are kept together. While it is being written it lies in open BF16 frames of
`block_size` tokens; once full it is sealed into one frame:

    sealed[0] sealed[1] … sealed[k-1] | open: frames[0] frames[1] …
    0 ............................... num_sealed_tokens ......... num_tokens

`runs` remembers in which precision every group was begun, so that a recompute makes the same groups again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import GroupWrite


class SealedGroup(NamedTuple):
    """One full group, read-only."""

    frame: int
    start: int
    """Position of its first token."""
    length: int
    """Tokens in it: `tokens_per_frame(precision)`."""
    precision: Precision


@dataclass(slots=True, kw_only=True, eq=False)
class OpenGroup:
    """The group at hand. `num_tokens` of its `length` tokens are written, in `frames` of `block_size` tokens each."""

    start: int
    length: int
    precision: Precision
    """What it will be sealed in; the open frames themselves are BF16."""
    frames: list[int] = field(default_factory=list)
    num_tokens: int = 0


class PrecisionRun(NamedTuple):
    """Groups from `start` on have this precision, up to the next run."""

    start: int
    precision: Precision


@dataclass(slots=True, kw_only=True, eq=False)
class SwappedFrames:
    """Where the frames of a preempted request are: in host slots, or still in the pool where others hold them too."""

    sealed: dict[int, int]
    """Index into `FrameTable.sealed` → host slot; the others never left."""
    open: dict[int, int]
    """Index into `OpenGroup.frames` → host slot; the others never left."""


@dataclass(slots=True, eq=False)
class FrameTable:
    """Sealed groups in order and the open one. `sealed` grows at the end; any other change of it raises `epoch`."""

    sealed: list[SealedGroup] = field(default_factory=list)
    open: OpenGroup | None = None
    num_sealed_tokens: int = 0
    epoch: int = 0
    """Changes when entries of `sealed` were replaced or removed, so that copies of the table must be made anew."""
    pending: tuple[GroupWrite, ...] = ()
    """What the step at hand writes; part of the table once the step has ended. The frames are held from now on."""
    swapped: SwappedFrames | None = None
    runs: list[PrecisionRun] = field(default_factory=list)
    begun_until: int = 0
    """End of the last group that was ever begun: groups before it keep the precision that `runs` says."""
    demoted: bool = False
    """Some of its groups were demoted at some time."""
    keys: list[bytes] = field(default_factory=list)
    """Prefix keys of `sealed`, as long as all of it may be shared; shorter after a demotion."""
    lookup_keys: list[bytes] = field(default_factory=list)
    """Prefix keys that the tokens known so far would have, remembered between two tries to admit the request."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the frames hold."""
        return self.num_sealed_tokens + (self.open.num_tokens if self.open is not None else 0)

    @property
    def is_mixed(self) -> bool:
        """Its groups are not, or have not always been, of one precision."""
        return self.demoted or len(self.runs) > 1

    def precision_at(self, start: int, current: Precision) -> Precision:
        """Precision of the group that begins at `start`: as before where it was begun before, else the current one."""
        if start >= self.begun_until:
            return current
        return next(run.precision for run in reversed(self.runs) if run.start <= start)

    def begin_group(self, start: int, length: int, precision: Precision) -> None:
        """Record that a group begins here; does nothing for a group that a recompute begins again."""
        if start < self.begun_until:
            return
        if not self.runs or self.runs[-1].precision is not precision:
            self.runs.append(PrecisionRun(start, precision))
        self.begun_until = start + length

    def replay_demoted(self, start: int, end: int, precision: Precision) -> None:
        """Groups from `start` to `end` are kept in another precision now, and a recompute will make them so."""
        behind = self.precision_at(end, precision)
        runs = [run for run in self.runs if run.start < start] + [PrecisionRun(start, precision)]
        if end < self.begun_until:
            runs += [PrecisionRun(end, behind), *(run for run in self.runs if run.start > end)]
        changes = zip([None, *(run.precision for run in runs)], runs, strict=False)
        self.runs = [run for before, run in changes if run.precision is not before]
        self.demoted = True

    def num_groups_begun(self, lengths: Mapping[Precision, int]) -> int:
        """Groups that were ever begun: so many frames they take once they are sealed."""
        ends = [*(run.start for run in self.runs[1:]), self.begun_until][: len(self.runs)]
        return sum((end - run.start) // lengths[run.precision] for run, end in zip(self.runs, ends, strict=True))

    def held_frames(self) -> Iterator[int]:
        """Frames in the pool that this table holds, in order of position."""
        away = self.swapped
        for index, group in enumerate(self.sealed):
            if away is None or index not in away.sealed:
                yield group.frame
        if self.pending:
            for write in self.pending:
                yield from write.frames
        elif self.open is not None:
            for index, frame in enumerate(self.open.frames):
                if away is None or index not in away.open:
                    yield frame

    def held_slots(self) -> Iterator[int]:
        """Host slots that this table holds."""
        if self.swapped is not None:
            yield from self.swapped.sealed.values()
            yield from self.swapped.open.values()

    def clear(self) -> None:
        """Forget all frames; whoever calls has given them back. What the request was computed in is kept."""
        self.sealed.clear()
        self.keys.clear()
        self.open = None
        self.pending = ()
        self.swapped = None
        self.num_sealed_tokens = 0
        self.epoch += 1

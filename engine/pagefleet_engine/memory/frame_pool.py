"""The frames of the KV pool: which are free, who many holders each has, and what is moving.

    take ──► OPEN ──seal──► SEALED          depart: IN_TRANSFER, then FREE (may be taken earlier when nothing is free)
    take_arriving ──► IN_TRANSFER ──settle──► OPEN or SEALED

Free frames are taken last in, first out; a new pool hands out 0, 1, 2, … The pool knows nothing of tokens, requests or
the prefix cache: a sealed frame without a holder stays SEALED until its owner frees it.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum

from pagefleet_engine.contract.precision import Precision


class FrameError(RuntimeError):
    """A frame was used against its state: a bug of the caller, never of a request."""


class FrameState(StrEnum):
    """What a frame holds."""

    FREE = "free"
    OPEN = "open"
    """BF16, being written."""
    SEALED = "sealed"
    """Full and read-only; held by requests, by the prefix cache, or by both."""
    IN_TRANSFER = "in_transfer"
    """Being copied to or from host memory, or read by a copy, in the step at hand."""


class FramePool:
    """A fixed number of frames. Every method is O(1) but `settle` and `check_invariants`.

    `num_held` counts the frames that at least one request holds; usage is their share. `sealed` counts sealed frames
    by precision, cached ones that nobody holds included.
    """

    def __init__(self, num_frames: int) -> None:
        if num_frames < 1:
            raise ValueError(f"a pool needs at least one frame, not {num_frames}")
        self.num_frames = num_frames
        self.num_held = 0
        self.sealed = dict.fromkeys(Precision, 0)
        self._sealed_as: dict[int, Precision] = {}
        self._state = [FrameState.FREE] * num_frames
        self._holders = [0] * num_frames
        self._free = list(range(num_frames - 1, -1, -1))
        self._departing: deque[int] = deque()
        self._arriving: dict[int, Precision | None] = {}
        self._read_by_copy: set[int] = set()
        self._freed_while_read: list[int] = []

    @property
    def num_free(self) -> int:
        """Frames that `take` can hand out now."""
        return len(self._free) + len(self._departing)

    def state(self, frame: int) -> FrameState:
        return self._state[frame]

    def holders(self, frame: int) -> int:
        return self._holders[frame]

    def counts(self) -> dict[FrameState, int]:
        """Frames by state; the sum is `num_frames`."""
        free, sealed = len(self._free), len(self._sealed_as)
        moving = len(self._departing) + len(self._arriving) + len(self._freed_while_read)
        return {
            FrameState.FREE: free,
            FrameState.OPEN: self.num_frames - free - sealed - moving,
            FrameState.SEALED: sealed,
            FrameState.IN_TRANSFER: moving,
        }

    def take(self) -> int:
        """A free frame, now open and held once. Raises `FrameError` when there is none."""
        frame = self._pop()
        self._state[frame] = FrameState.OPEN
        return frame

    def take_arriving(self, becomes: Precision | None) -> int:
        """A free frame, held once, that is filled from host memory in this step.

        Afterwards it is sealed in the precision that `becomes` names, or open.
        """
        frame = self._pop()
        self._state[frame] = FrameState.IN_TRANSFER
        self._arriving[frame] = becomes
        return frame

    def hold(self, frame: int) -> None:
        """One more holder."""
        if self._state[frame] is FrameState.FREE:
            raise FrameError(f"frame {frame} is free and cannot be held")
        self.num_held += not self._holders[frame]
        self._holders[frame] += 1

    def drop(self, frame: int) -> bool:
        """One holder less. True when it was the last one; the frame then keeps its state until it is freed."""
        if not self._holders[frame]:
            raise FrameError(f"frame {frame} has no holder left to drop")
        self._holders[frame] -= 1
        self.num_held -= not self._holders[frame]
        return not self._holders[frame]

    def seal(self, frame: int, precision: Precision) -> None:
        """An open frame is full and read-only from now on."""
        if self._state[frame] is not FrameState.OPEN:
            raise FrameError(f"frame {frame} is {self._state[frame]} and cannot be sealed")
        self._set_sealed(frame, precision)

    def demote(self, frame: int, precision: Precision) -> None:
        """A sealed frame that one request alone holds is written again in another precision."""
        if self._state[frame] is not FrameState.SEALED or self._holders[frame] != 1:
            raise FrameError(
                f"frame {frame} is {self._state[frame]}, held by {self._holders[frame]}, cannot be demoted"
            )
        self._unseal(frame)
        self._set_sealed(frame, precision)

    def free(self, frame: int) -> None:
        """A frame without a holder can be taken again: at once, or after the step when a copy still reads it."""
        self._check_unheld(frame)
        self._unseal(frame)
        if frame in self._read_by_copy:
            self._state[frame] = FrameState.IN_TRANSFER
            self._freed_while_read.append(frame)
        else:
            self._state[frame] = FrameState.FREE
            self._free.append(frame)

    def depart(self, frame: int) -> None:
        """A frame without a holder is copied to host memory in this step; `take` hands it out when nothing is free."""
        self._check_unheld(frame)
        if frame in self._read_by_copy:
            raise FrameError(f"frame {frame} is the source of a copy and cannot leave in the same step")
        self._unseal(frame)
        self._state[frame] = FrameState.IN_TRANSFER
        self._departing.append(frame)

    def read_by_copy(self, frame: int) -> None:
        """The frame is the source of a copy in this step, so nobody else may be given it before the step has ended."""
        self._read_by_copy.add(frame)

    def is_read_by_copy(self, frame: int) -> bool:
        return frame in self._read_by_copy

    def settle(self) -> None:
        """The step has ended: what was moving has arrived."""
        for frame, becomes in self._arriving.items():
            self._state[frame] = FrameState.OPEN
            if becomes is not None:
                self._set_sealed(frame, becomes)
        leaving = (*self._departing, *self._freed_while_read)
        for frame in leaving:
            self._state[frame] = FrameState.FREE
        self._free.extend(leaving)
        self._arriving.clear()
        self._departing.clear()
        self._read_by_copy.clear()
        self._freed_while_read.clear()

    def check_invariants(self, held: Counter[int]) -> None:
        """Raises `FrameError` unless lists and states agree and every frame has as many holders as `held` says."""
        moving = [*self._departing, *self._arriving, *self._freed_while_read]
        for state, listed in ((FrameState.FREE, self._free), (FrameState.IN_TRANSFER, moving)):
            want = {frame for frame in range(self.num_frames) if self._state[frame] is state}
            if len(listed) != len(want) or set(listed) != want:
                raise FrameError(f"{state} frames are {sorted(want)}, but {sorted(listed)} are listed")
        sealed = {frame for frame in range(self.num_frames) if self._state[frame] is FrameState.SEALED}
        if sealed != set(self._sealed_as) or Counter(self._sealed_as.values()) != Counter(self.sealed):
            raise FrameError(f"sealed frames are {sorted(sealed)}, but {sorted(self._sealed_as)} are counted")
        for frame, holders in enumerate(self._holders):
            if holders != held[frame]:
                raise FrameError(f"frame {frame} counts {holders} holders, but {held[frame]} hold it")
            if holders and self._state[frame] is FrameState.FREE:
                raise FrameError(f"frame {frame} is free and held")
        if self.num_held != sum(1 for holders in self._holders if holders):
            raise FrameError(f"{self.num_held} frames are counted as held")

    def _pop(self) -> int:
        if not self._free and not self._departing:
            raise FrameError("no frame is free")
        frame = self._free.pop() if self._free else self._departing.popleft()
        self._holders[frame] = 1
        self.num_held += 1
        return frame

    def _set_sealed(self, frame: int, precision: Precision) -> None:
        self._state[frame] = FrameState.SEALED
        self._sealed_as[frame] = precision
        self.sealed[precision] += 1

    def _unseal(self, frame: int) -> None:
        precision = self._sealed_as.pop(frame, None)
        if precision is not None:
            self.sealed[precision] -= 1

    def _check_unheld(self, frame: int) -> None:
        if self._holders[frame]:
            raise FrameError(f"frame {frame} is still held by {self._holders[frame]}")
        if self._state[frame] in (FrameState.FREE, FrameState.IN_TRANSFER):
            raise FrameError(f"frame {frame} is {self._state[frame]} already")

"""KV arithmetic: how many frames a sequence takes.

With L tokens to a group and b tokens to an open frame, T tokens of one precision lie in

    T // L sealed frames + ceil((T mod L) / b) open frames

and growing to T tokens one by one has taken at most `peak_frames(T)`: the last group to be sealed was open before.
What a frame looks like inside is `pagefleet_kernels.layout`'s business.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from pagefleet_engine.contract.precision import Precision


class Layout(Protocol):
    """What the scheduler needs to know of a frame; `pagefleet_kernels.layout.FrameLayout` is the real one."""

    @property
    def block_size(self) -> int:
        """Tokens of an open frame."""
        ...

    def tokens_per_frame(self, precision: Precision) -> int:
        """Tokens of a sealed frame: at least `block_size`."""
        ...


class GroupSizes:
    """Group lengths by precision, and the arithmetic on them."""

    __slots__ = ("block_size", "lengths")

    def __init__(self, layout: Layout) -> None:
        self.block_size = layout.block_size
        self.lengths = {precision: layout.tokens_per_frame(precision) for precision in Precision}

    def open_frames(self, num_tokens: int) -> int:
        """Open frames that `num_tokens` tokens of one group take."""
        return -(-num_tokens // self.block_size)

    def frames(self, num_tokens: int, precision: Precision) -> int:
        """Frames that a sequence of this length takes."""
        full, rest = divmod(num_tokens, self.lengths[precision])
        return full + self.open_frames(rest)

    def peak_frames(self, num_tokens: int, precision: Precision) -> int:
        """The most frames that a sequence takes on its way to this length."""
        full = num_tokens // self.lengths[precision]
        before_last_seal = full - 1 + self.open_frames(self.lengths[precision] - 1) if full else 0
        return max(self.frames(num_tokens, precision), before_last_seal)

    def longest(self, num_frames: int, precision: Precision) -> int:
        """The longest sequence that `num_frames` frames can hold all the way."""
        lengths = range(1, num_frames * self.lengths[precision] + 1)
        return bisect_right(lengths, num_frames, key=lambda num_tokens: self.peak_frames(num_tokens, precision))

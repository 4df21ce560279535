"""Which requests of a route are its controls: a fixed share of them, chosen by chance.

Pure; the chance comes from a seed. By chance, since a client that alternates two kinds of prompts would give a fixed
pattern one kind only. In blocks, so that the share is exact all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Final

_SMALLEST_BLOCK: Final = 20
_LARGEST_BLOCK: Final = 1_000


def block_size(share: Fraction) -> int:
    """The smallest number of requests, 20 at least, of which the share is a whole number; at most 1,000."""
    whole = share.denominator
    return min(whole * -(-_SMALLEST_BLOCK // whole), _LARGEST_BLOCK)


@dataclass(slots=True)
class ControlShare:
    """Deals turns from one shuffled block after another. Every order of a block is as likely as any other.

    A block of the largest size may miss the share by a part of a request; the next ones make up for it.
    """

    share: float
    """Counts as the decimal that it is shown as."""
    rng: Random
    _num_left: int = field(init=False, default=0)
    _num_controls_left: int = field(init=False, default=0)
    _owed: Fraction = field(init=False, default=Fraction(0))

    def next(self) -> bool:
        """Whether the next request is a control."""
        if self._num_left == 0:
            self._begin_block()
        is_control = self.rng.randrange(self._num_left) < self._num_controls_left
        self._num_left -= 1
        self._num_controls_left -= is_control
        return is_control

    def give_back(self, is_control: bool) -> None:
        """The request did not run after all: its turn goes into the block at hand."""
        self._num_left += 1
        self._num_controls_left += is_control

    def _begin_block(self) -> None:
        exact = Fraction(repr(self.share))
        self._num_left = block_size(exact)
        due = exact * self._num_left + self._owed
        self._num_controls_left = round(due)
        self._owed = due - self._num_controls_left

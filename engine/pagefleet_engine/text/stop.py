"""Stop strings in a stream: text is emitted as soon as it cannot be part of one any more.

No tokenizer here: it looks at text only, so it also finds a stop string that spans tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopPiece(NamedTuple):
    """What a stop matcher made of a piece of text."""

    text: str
    """May be shown now."""
    stopped: bool
    """A stop string was found: `text` ends before it, and nothing may follow."""


class StopMatcher:
    """Looks for the earliest end of any of `stops`. Mutable: it keeps the text it holds back."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> StopPiece:
        """Add the next piece of text. After `stopped` the matcher must not be used again."""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            end, start = min(found)
            return StopPiece(self._held[: end if self._include_stop else start], True)
        keep = held_back(self._held, self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return StopPiece(shown, False)

    def flush(self) -> str:
        """What was held back, when the text ended without a stop string."""
        shown, self._held = self._held, ""
        return shown


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        suffix = text[-length:]
        if any(stop.startswith(suffix) for stop in stops if len(stop) > length):
            return length
    return 0

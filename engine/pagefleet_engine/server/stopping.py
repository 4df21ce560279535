"""Finds stop strings in a text that arrives in pieces, and never lets half of one out.

Pure. After each piece the longest tail that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    text: str  # what may be sent now
    matched: str | None  # the stop string that ends the answer here


class StopStrings:
    """Watches one answer. The stop string that is complete first wins, the longer one on a tie: so the result depends
    on the text alone and not on the pieces it came in."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._longest_tail = max((len(stop) for stop in stops), default=1) - 1
        self._include = include
        self._held = ""

    def push(self, piece: str) -> Cut:
        """Text that is safe to send. After a match nothing more may be pushed."""
        text = self._held + piece
        found = self._first_match(text)
        if found is not None:
            start, stop = found
            self._held = ""
            return Cut(text[: start + len(stop)] if self._include else text[:start], stop)
        keep = self._tail_length(text)
        self._held = text[len(text) - keep :]
        return Cut(text[: len(text) - keep], None)

    def flush(self) -> str:
        """What is held back, when the answer ends without a match."""
        text, self._held = self._held, ""
        return text

    def _first_match(self, text: str) -> tuple[int, str] | None:
        hits = [(position, stop) for stop in self._stops if (position := text.find(stop)) >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]), default=None)

    def _tail_length(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins a stop string."""
        for start in range(max(0, len(text) - self._longest_tail), len(text)):
            if text[start] in self._first_chars and self._begins_a_stop(text[start:]):
                return len(text) - start
        return 0

    def _begins_a_stop(self, tail: str) -> bool:
        return any(stop.startswith(tail) for stop in self._stops)

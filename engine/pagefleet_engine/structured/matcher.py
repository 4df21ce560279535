"""A constraint over llguidance's matcher."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from pagefleet_engine.structured.constraint import ConstraintFailed


class GrammarMatcher:
    """`Constraint` of one request. Begins with a copy of `start`, a matcher that has taken no token yet."""

    def __init__(self, start: LLMatcher) -> None:
        self._matcher = start.deep_copy()
        self._num_taken = 0

    def mask(self, answer: Sequence[int]) -> bytes:
        for token_id in answer[self._num_taken :]:
            self._take(token_id)
        found = self._matcher.compute_bitmask()
        self._check()
        return found

    def accept(self, token_id: int) -> bool:
        self._take(token_id)
        return self._matcher.is_stopped()

    def _take(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._num_taken += 1
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(first_line(self._matcher.get_error()))


def first_line(text: str) -> str:
    """The library's errors go on with a dump of the parser."""
    return text.strip().partition("\n")[0][:200]

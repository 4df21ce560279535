"""Tokens to text, piece by piece.

Every token stands for fixed bytes; bytes become text when a character is whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class IncrementalDetokenizer:
    """One request's text. Mutable: it keeps the bytes of a character that is not complete yet."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def flush(self) -> str:
        """What is still held back, as U+FFFD."""
        return self._decoder.decode(b"", final=True)

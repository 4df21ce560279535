"""Log probabilities as JSON: OpenAI's `logprobs` of plain completions, and vLLM's `prompt_logprobs`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from pagefleet_engine.api import Tokenizer, TokenLogprobs
from pagefleet_engine.prompt_logprobs import PromptLogprobs

Json = dict[str, Any]

_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no number for."""


def finite(logprob: float) -> float:
    """A number that JSON has."""
    return logprob if math.isfinite(logprob) else _LOWEST_LOGPROB


class CompletionLogprobs:
    """`logprobs` of one choice, in pieces: an echoed prompt, then the answer. Knows where in the text tokens begin.

    A token begins after the characters that the tokens before it have completed: all bytes of one character, and
    special tokens that the text does not show, have one offset with what follows.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
        self._length = 0

    def echo(self, text: str, prompt_ids: Sequence[int], scores: PromptLogprobs, num_top: int) -> Json:
        """The prompt, whose text the answer repeats; its first token has no log probability."""
        offsets = prompt_offsets(self._tokenizer, prompt_ids, text)
        self._length = len(text)
        entries = list(scores.entries(num_top))
        return {
            "tokens": [self._tokenizer.token_text(token_id) for token_id in prompt_ids],
            "token_logprobs": [None, *(finite(entry.logprob) for entry in entries)],
            "top_logprobs": [None, *(self._top(entry) for entry in entries)],
            "text_offset": offsets,
        }

    def answer(self, entries: Sequence[TokenLogprobs]) -> Json:
        """The tokens that come next."""
        offsets = []
        for entry in entries:
            offsets.append(self._length)
            self._length += len(self._detokenizer.push((entry.token_id,)))
        return {
            "tokens": [self._tokenizer.token_text(entry.token_id) for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """By text; of tokens with the same text, such as parts of characters, the most likely one stays."""
        found: dict[str, float] = {}
        for token_id, logprob in entry.top:
            found.setdefault(self._tokenizer.token_text(token_id), finite(logprob))
        return found


def prompt_offsets(tokenizer: Tokenizer, prompt_ids: Sequence[int], text: str) -> list[int]:
    """Where in the prompt's text each of its tokens begins.

    A begin-of-sequence token that the tokenizer has put before the text begins where the text does.
    """
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    pieces = [detokenizer.push((token_id,)) for token_id in prompt_ids]
    decoded = "".join(pieces) + detokenizer.flush()
    before = len(decoded) - len(text) if decoded.endswith(text) else 0
    starts = accumulate((len(piece) for piece in pieces[:-1]), initial=0)
    return [min(max(start - before, 0), len(text)) for start in starts]


def joined(parts: Iterable[Json]) -> Json:
    """`logprobs` of consecutive tokens as one."""
    first, *rest = parts
    return {key: [value for part in (first, *rest) for value in part[key]] for key in first}


def prompt_logprobs(tokenizer: Tokenizer, scores: PromptLogprobs, num_top: int) -> list[Json | None]:
    """As vLLM writes them: null for the first token, then by token id the prompt's own token and the likely ones."""
    return [None, *(_by_token_id(tokenizer, entry) for entry in scores.entries(num_top))]


def _by_token_id(tokenizer: Tokenizer, entry: TokenLogprobs) -> Json:
    ranked = [(entry.token_id, entry.logprob, entry.rank)]
    ranked += [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, start=1)]
    return {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": tokenizer.token_text(token_id)}
        for token_id, logprob, rank in ranked
    }

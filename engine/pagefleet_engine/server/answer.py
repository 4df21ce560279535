"""Turns one request's tokens into the text a client may see: detokenised, cut at stop strings, with log probabilities.

Pure: no engine, no clock, no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pagefleet_engine.api import Detokenizer, TokenLogprobs, TokenOutput
from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.job import Choice
from pagefleet_engine.server.stopping import Cut, StopStrings
from pagefleet_engine.server.tool_parser import CallPiece

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one choice got. The last one carries `finish_reason`."""

    index: int
    text: str
    num_tokens: int
    """Tokens generated since the last delta, those of a stop string included."""
    token_ids: tuple[int, ...] = ()
    """Where the client wants them: those of the text, which may have come before it."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop_logprobs: TokenLogprobs | None = None
    """Those of the stop token that ended the answer, which is no part of it."""
    prompt_logprobs: PromptLogprobs | None = None
    """Those of the prompt, with the first delta alone."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string, or the one of the client's stop tokens, that ended the answer."""
    tool_calls: tuple[CallPiece, ...] = ()
    has_called: bool = False
    """The answer has called a tool, now or before."""
    num_cached_tokens: int = 0
    """Of the prompt; counted at its first choice alone, since the others share that one's frames."""

    @property
    def is_empty(self) -> bool:
        """There is nothing in it for the client."""
        shown = self.text or self.tool_calls or self.logprobs or self.token_ids or self.finish_reason
        return not shown and self.prompt_logprobs is None


class Answer:
    """Follows one choice from its first output to its last. Text, tokens and log probabilities leave together."""

    def __init__(
        self, choice: Choice, detokenizer: Detokenizer, *, include_stop: bool, keeps_token_ids: bool = False
    ) -> None:
        self._index = choice.index
        self._is_leader = choice.index == choice.leader
        self._min_tokens = choice.sampling.min_tokens
        self._stop_token_ids = frozenset(choice.sampling.stop_token_ids)
        self._detokenizer = detokenizer
        self._stops = StopStrings(choice.sampling.stop, include=include_stop)
        self._num_tokens = 0
        self._logprobs: list[TokenLogprobs] = []
        self._keeps_token_ids = keeps_token_ids
        self._token_ids: list[int] = []

    def add(self, output: TokenOutput) -> Delta:
        """The next delta; when it carries a `finish_reason` the answer has ended, whatever the engine says later."""
        self._num_tokens += len(output.token_ids)
        self._logprobs.extend(output.logprobs or ())
        if self._keeps_token_ids:
            self._token_ids.extend(output.token_ids)
        text = self._detokenizer.push(output.token_ids)
        if output.finish_reason is not None:
            text += self._detokenizer.flush()
        cut = self._cut(text)
        reason = FinishReason.STOP if cut.matched is not None else output.finish_reason
        text = cut.text if cut.matched is not None or reason is None else cut.text + self._stops.flush()
        release = bool(text) or reason is not None
        return Delta(
            index=self._index,
            text=text,
            num_tokens=len(output.token_ids),
            token_ids=_take(self._token_ids) if release else (),
            logprobs=_take(self._logprobs) if release else (),
            stop_logprobs=output.stop_logprobs,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=reason,
            stop_reason=cut.matched if cut.matched is not None else self._stop_token(output),
            num_cached_tokens=output.num_cached_tokens if self._is_leader else 0,
        )

    def _cut(self, text: str) -> Cut:
        """Stop strings do not count before `min_tokens`, as stop tokens do not."""
        return Cut(text, None) if self._num_tokens < self._min_tokens else self._stops.push(text)

    def _stop_token(self, output: TokenOutput) -> int | None:
        """The model's own end of a sequence is no reason that a client needs to hear."""
        return output.stop_token_id if output.stop_token_id in self._stop_token_ids else None


def _take(held: list[T]) -> tuple[T, ...]:
    taken = tuple(held)
    held.clear()
    return taken

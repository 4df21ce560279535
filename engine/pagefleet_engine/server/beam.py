"""Beam search as a pure loop: which prefixes to extend, which answers are complete, and when no better one can come.

    next beams = the `width` best of { beam + token : the 2 * width most likely tokens of every beam }
    score      = log probability of all tokens / length ** length_penalty

The length is prompt plus answer without the token that ended it, as in vLLM. A complete answer leaves the beams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pagefleet_engine.request import FinishReason

Candidates = Sequence[tuple[int, float]]
"""Tokens with their log probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """The beginning of an answer, or a whole one."""

    token_ids: tuple[int, ...] = ()
    """Without the token that ended it."""
    logprob: float = 0.0
    """Of all its tokens together, the one that ended it included."""
    parent: int = 0
    """Index of the beam that it extends, among those of the step before."""
    finish_reason: FinishReason | None = None


@dataclass(slots=True, kw_only=True)
class BeamSearch:
    """One prompt's search. `live` are the prefixes whose next tokens are wanted, best first."""

    width: int
    num_prompt: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    length_penalty: float = 1.0
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    complete: list[Beam] = field(default_factory=list)

    def advance(self, candidates: Sequence[Candidates]) -> None:
        """Extend every live beam by its candidates, in the order of `live`."""
        grown = [
            self._extend(beam, index, token, logprob)
            for index, (beam, tokens) in enumerate(zip(self.live, candidates, strict=True))
            for token, logprob in tokens
        ]
        self.complete += [beam for beam in grown if beam.finish_reason is FinishReason.STOP]
        going_on = [beam for beam in grown if beam.finish_reason is not FinishReason.STOP]
        self.live = sorted(going_on, key=lambda beam: -beam.logprob)[: self.width]
        if self.live and len(self.live[0].token_ids) == self.max_tokens:
            self.complete += self.live
            self.live = []
        self.complete = sorted(self.complete, key=lambda beam: -self.score(beam))[: self.width]

    def is_done(self) -> bool:
        """No live beam can still become one of the answers."""
        if not self.live:
            return True
        return len(self.complete) == self.width and self.score(self.complete[-1]) >= self._best_to_come()

    def best(self, count: int) -> list[Beam]:
        """The answers, best first."""
        return self.complete[:count]

    def score(self, beam: Beam) -> float:
        """What answers are ranked by; higher is better."""
        return self._score(beam.logprob, len(beam.token_ids))

    def _score(self, logprob: float, num_tokens: int) -> float:
        return logprob / math.pow(max(self.num_prompt + num_tokens, 1), self.length_penalty)

    def _extend(self, beam: Beam, index: int, token: int, logprob: float) -> Beam:
        total = beam.logprob + logprob
        if token in self.stop_token_ids:
            return Beam(token_ids=beam.token_ids, logprob=total, parent=index, finish_reason=FinishReason.STOP)
        token_ids = (*beam.token_ids, token)
        reason = FinishReason.LENGTH if len(token_ids) == self.max_tokens else None
        return Beam(token_ids=token_ids, logprob=total, parent=index, finish_reason=reason)

    def _best_to_come(self) -> float:
        """No descendant of a live beam scores higher: log probabilities only fall, whatever the length."""
        best = max(beam.logprob for beam in self.live)
        now = len(self.live[0].token_ids)
        return max(self._score(best, now), self._score(best, self.max_tokens))

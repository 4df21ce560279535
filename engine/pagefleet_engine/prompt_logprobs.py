"""Log probabilities of prompt tokens, as flat arrays: a long prompt with many alternatives has millions of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from pagefleet_engine.api import TokenLogprobs


def _ints() -> array[int]:
    return array("i")


def _floats() -> array[float]:
    return array("f")


@dataclass(slots=True, kw_only=True)
class PromptLogprobs:
    """Log probabilities of consecutive prompt tokens, each given those before it, in the model's own distribution.

    A whole prompt has one entry less than tokens, since nothing comes before its first. Values are fp32, as computed.
    """

    num_top: int
    """The most likely tokens that are kept for each entry."""
    token_ids: array[int] = field(default_factory=_ints)
    logprobs: array[float] = field(default_factory=_floats)
    ranks: array[int] = field(default_factory=_ints)
    """Tokens at least as likely, the prompt's own included: 1 is the most likely one."""
    top_ids: array[int] = field(default_factory=_ints)
    """`num_top` for each entry, best first."""
    top_logprobs: array[float] = field(default_factory=_floats)

    def __len__(self) -> int:
        return len(self.token_ids)

    def extend(self, following: PromptLogprobs) -> None:
        """Add the entries of the tokens that come next. Both have the same `num_top`."""
        self.token_ids.extend(following.token_ids)
        self.logprobs.extend(following.logprobs)
        self.ranks.extend(following.ranks)
        self.top_ids.extend(following.top_ids)
        self.top_logprobs.extend(following.top_logprobs)

    def entries(self, num_top: int | None = None) -> Iterator[TokenLogprobs]:
        """One value per token, with at most `num_top` of the most likely ones; None gives all that were kept."""
        kept = self.num_top if num_top is None else min(num_top, self.num_top)
        for index, (token_id, logprob, rank) in enumerate(zip(self.token_ids, self.logprobs, self.ranks, strict=True)):
            place = slice(index * self.num_top, index * self.num_top + kept)
            top = tuple(zip(self.top_ids[place], self.top_logprobs[place], strict=True))
            yield TokenLogprobs(token_id=token_id, logprob=logprob, top=top, rank=rank)

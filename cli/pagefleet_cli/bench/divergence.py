"""How far one KV precision's next-token distributions are from BF16's, position by position.

    KLD(p) = sum over the vocabulary of P_ref (log P_ref - log P), in nat, from fp32 log-softmax
    perplexity = exp(mean of -log P(next token))

Shapes: N positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagefleet_engine.models.llama import Decoder

BLOCK = 64
"""Positions whose logits exist at once: 12 MB for a vocabulary of 49,152, which the allocator keeps and reuses. Blocks
of 50 MB are mapped and zeroed again for every operation, which took half of the time."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Per position: fp64 `[N]` each."""

    kld: NDArray[np.float64]
    surprise: NDArray[np.float64]
    """-log P of the token that the text goes on with."""
    agrees: NDArray[np.float64]
    """1 where the most likely token is BF16's."""

    @property
    def num_positions(self) -> int:
        return len(self.kld)

    @property
    def mean_kld(self) -> float:
        return float(self.kld.mean())

    @property
    def perplexity(self) -> float:
        return math.exp(float(self.surprise.mean()))

    @property
    def agreement(self) -> float:
        """Share of positions."""
        return float(self.agrees.mean())

    def part(self, first: int, last: int) -> Scores:
        """Positions `first .. last`."""
        cut = slice(first, last)
        return Scores(kld=self.kld[cut], surprise=self.surprise[cut], agrees=self.agrees[cut])


def join(parts: Sequence[Scores]) -> Scores:
    """The positions of all of them, in order."""
    return Scores(
        kld=np.concatenate([part.kld for part in parts]),
        surprise=np.concatenate([part.surprise for part in parts]),
        agrees=np.concatenate([part.agrees for part in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Generic[Key]):
    """The reference, at no distance from itself, and the others."""

    reference: Scores
    others: dict[Key, Scores]


def compare(
    decoder: Decoder, reference_ND: Tensor, others: Mapping[Key, Tensor], targets: Sequence[int]
) -> Comparison[Key]:
    """Scores of each of `others` against the reference; `targets[n]` is the token after position n.

    Takes activations before the final norm, and computes logits block by block with the model's own head.
    """
    base: list[Scores] = []
    found: dict[Key, list[Scores]] = {key: [] for key in others}
    with torch.inference_mode():
        for block in _blocks(len(targets)):
            wanted = torch.tensor(targets[block], dtype=torch.int64)[:, None]
            reference = decoder.logits(reference_ND[block]).log_softmax(-1)
            weights, best = reference.exp(), reference.argmax(-1, keepdim=True)
            surprise = _surprise(reference, wanted)
            base.append(Scores(kld=np.zeros_like(surprise), surprise=surprise, agrees=np.ones_like(surprise)))
            for key, hidden_ND in others.items():
                logprobs = decoder.logits(hidden_ND[block]).log_softmax(-1)
                scores = Scores(
                    kld=(reference - logprobs).mul_(weights).sum(-1).double().numpy(),
                    surprise=_surprise(logprobs, wanted),
                    agrees=(logprobs.gather(1, best)[:, 0] == logprobs.amax(-1)).double().numpy(),
                )
                found[key].append(scores)
    return Comparison(reference=join(base), others={key: join(parts) for key, parts in found.items()})


def _surprise(logprobs_NV: Tensor, wanted_N1: Tensor) -> NDArray[np.float64]:
    return -logprobs_NV.gather(1, wanted_N1)[:, 0].double().numpy()


def _blocks(num_positions: int) -> Iterator[slice]:
    for first in range(0, num_positions, BLOCK):
        yield slice(first, min(first + BLOCK, num_positions))

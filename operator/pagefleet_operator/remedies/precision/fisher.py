"""How much one block of answers speaks for a worse engine arm: Fisher's conditional likelihood ratio.

A block holds n1 answers of the engine's arm and n0 of the control, f bad ones in all, x of them in the engine's arm.
Given the margins, x has the hypergeometric law h when both arms are equally good, whatever their common rate, and the
noncentral law with weights h(k) * w^k when the odds of a bad answer are w times higher in the engine's arm. The ratio

    e_w(x) = w^x / sum_k h(k) w^k

has the mean 1 under equality. So it is an e-value, and a product over blocks is a test martingale, however the rate
moves from block to block: a harder prompt mix changes f, not the law of x. ter Schure, Perez-Ortiz, Ly, Gruenwald,
"The Anytime-Valid Logrank Test", arXiv:2011.06931, use the same ratio for tied events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A two by two table."""

    engine: int = 0  # answers in the engine's arm
    engine_bad: int = 0  # of these, bad ones
    control: int = 0
    control_bad: int = 0

    def __add__(self, other: Block) -> Block:
        return Block(
            engine=self.engine + other.engine,
            engine_bad=self.engine_bad + other.engine_bad,
            control=self.control + other.control,
            control_bad=self.control_bad + other.control_bad,
        )


def log_e_values(block: Block, odds: Sequence[float]) -> tuple[float, ...]:
    """log e_w of the block for every odds ratio w in `odds`."""
    bad = block.engine_bad + block.control_bad
    fewest, most = max(0, bad - block.control), min(bad, block.engine)
    if fewest == most:
        return (0.0,) * len(odds)
    weights = _log_hypergeometric(block, bad, fewest, most)
    base = log_sum(weights)
    return tuple(_log_e(math.log(ratio), weights, base, block.engine_bad - fewest) for ratio in odds)


def log_sum(logs: Sequence[float]) -> float:
    """log of the sum of exp."""
    top = max(logs)
    return top + math.log(math.fsum(math.exp(value - top) for value in logs))


def _log_e(log_ratio: float, weights: Sequence[float], base: float, above_fewest: int) -> float:
    tilted = log_sum([weight + step * log_ratio for step, weight in enumerate(weights)])
    return above_fewest * log_ratio - (tilted - base)


def _log_hypergeometric(block: Block, bad: int, fewest: int, most: int) -> list[float]:
    """log h(k) for k from `fewest` to `most`, up to a constant, by the ratio of neighbours."""
    logs = [0.0]
    for k in range(fewest, most):
        ratio = (block.engine - k) * (bad - k) / ((k + 1) * (block.control - bad + k + 1))
        logs.append(logs[-1] + math.log(ratio))
    return logs

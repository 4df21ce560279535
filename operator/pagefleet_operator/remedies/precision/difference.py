"""The second stage: whether the engine's arm is worse than the control, at any time one cares to look.

A mixture sequential probability ratio test (Robbins 1970; Johari, Pekelis, Walsh, "Always Valid Inference", Operations
Research 70(3), 2022) over the odds ratios `ODDS`, on Fisher's conditional likelihood of each block (`fisher.py`). By
Ville's inequality the chance that the evidence ever reaches 1/alpha while both arms are equal is at most alpha.

Failures and truncations are two strands, weighted 4 to 1, and an average of e-values is one. So truncations count just
as far as they exceed the control's. The same likelihood read backwards says that there is no difference worth a move:
when 1/e_2 reaches 1/beta the odds are, but for an error of beta, not twice those of the control.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from pagefleet_operator.remedies.precision.counts import Arms
from pagefleet_operator.remedies.precision.fisher import Block, log_e_values, log_sum

ODDS: Final = (1.5, 2.0, 3.0, 5.0, 9.0)
WORTH_A_MOVE: Final = ODDS.index(2.0)
SCHEMA_WEIGHT: Final = 0.8
ROUNDING: Final = 1e-9
MIN_BLOCK: Final = 8
"""Answers that a block has in each arm at least; depends on assignment alone, so it biases nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """The evidence of one kind of bad answer."""

    logs: tuple[float, ...] = (0.0,) * len(ODDS)
    open: Block = Block()

    def add(self, block: Block) -> Strand:
        """With more answers; they count once both arms have enough of them."""
        grown = self.open + block
        if min(grown.engine, grown.control) < MIN_BLOCK:
            return replace(self, open=grown)
        new = log_e_values(grown, ODDS)
        return Strand(logs=tuple(a + b for a, b in zip(self.logs, new, strict=True)))

    @property
    def log_e(self) -> float:
        """log of the mixture over the odds ratios, with equal weights."""
        return log_sum(self.logs) - math.log(len(self.logs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A running test of one route."""

    settling: int = 0  # answers still to be passed over: their requests began under another control share
    seen: Arms = Arms()
    schema: Strand = Strand()
    truncation: Strand = Strand()

    def add(self, arms: Arms) -> Difference:
        """With the answers since the last look; a look that falls into the settling time is passed over whole."""
        if self.settling > 0:
            return replace(self, settling=max(0, self.settling - arms.answers))
        engine, control = arms.engine, arms.control
        return Difference(
            seen=self.seen + arms,
            schema=self.schema.add(
                Block(
                    engine=engine.judged,
                    engine_bad=engine.failed,
                    control=control.judged,
                    control_bad=control.failed,
                )
            ),
            truncation=self.truncation.add(
                Block(
                    engine=engine.answers,
                    engine_bad=engine.truncated,
                    control=control.answers,
                    control_bad=control.truncated,
                )
            ),
        )

    @property
    def log_e(self) -> float:
        """log of the evidence that the engine's arm is worse."""
        return log_sum(
            (math.log(SCHEMA_WEIGHT) + self.schema.log_e, math.log(1 - SCHEMA_WEIGHT) + self.truncation.log_e)
        )

    def is_worse(self, alpha: float) -> bool:
        """Whether the engine's arm is worse, wrong with a chance of at most alpha."""
        return self.log_e >= -math.log(alpha)

    def is_equal(self, beta: float) -> bool:
        """Whether the odds of a failure are less than doubled, wrong with a chance of at most beta.

        Not said while truncations speak for a difference.
        """
        return self.schema.logs[WORTH_A_MOVE] <= math.log(beta) and self.truncation.log_e <= ROUNDING

    def has(self, min_samples: int) -> bool:
        """Whether both arms have as many answers."""
        return min(self.seen.engine.answers, self.seen.control.answers) >= min_samples

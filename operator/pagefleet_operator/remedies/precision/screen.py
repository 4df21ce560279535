"""The first stage: whether the engine's arm fails more often than the bound, and the last answers it looks at.

Page's CUSUM (Biometrika 41, 1954) of the log-likelihood ratio of a clearly bad against a clearly good rate, on either
side of the bound, over the last answers only. A false alarm costs no answer its precision: it starts the second stage.

Truncated answers have no verdict. Those above what the control explains, at the upper end of Wilson's interval of its
truncation rate (z = 2.5), count as failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pagefleet_operator.remedies.precision.counts import Arms

GOOD: Final = 0.6
BAD: Final = 1.6
MIN_BOUND: Final = 0.001
"""A bound of 0 is read as this: one failure in a thousand is the least that a window can show."""
ALARM: Final = math.log(30)
NUM_CHUNKS: Final = 20
Z: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The last answers of a route, oldest first, in at most about `NUM_CHUNKS` parts."""

    chunks: tuple[Arms, ...] = ()

    def add(self, arms: Arms, size: int) -> Window:
        """With the answers since the last look, and without those that `size` answers of the engine's arm push out."""
        chunks = [*self.chunks]
        if chunks and chunks[-1].answers + arms.answers <= size / NUM_CHUNKS:
            chunks[-1] = chunks[-1] + arms
        else:
            chunks.append(arms)
        held = sum(chunk.engine.answers for chunk in chunks)
        while len(chunks) > 1 and held - chunks[0].engine.answers >= size:
            held -= chunks.pop(0).engine.answers
        while len(chunks) > 2 * NUM_CHUNKS:
            chunks[:2] = [chunks[0] + chunks[1]]
        return Window(chunks=tuple(chunks))

    @property
    def total(self) -> Arms:
        """All of them together."""
        return sum(self.chunks, Arms())


def is_above(window: Window, bound: float, min_samples: int) -> bool:
    """Whether any stretch of the window that reaches to its end shows a rate above the bound."""
    failure, success = _weights(max(bound, MIN_BOUND))
    seen = Arms()
    for chunk in reversed(window.chunks):
        seen = seen + chunk
        extra = excess_truncations(seen)
        if seen.engine.judged + extra < min_samples:
            continue
        if (seen.engine.failed + extra) * failure + seen.engine.valid * success >= ALARM:
            return True
    return False


def excess_truncations(arms: Arms) -> float:
    """Truncated answers of the engine's arm beyond what the control's rate explains; 0 without a control."""
    if not arms.engine.truncated or not arms.control.answers:
        return 0.0
    explained = _wilson_upper(arms.control.truncated, arms.control.answers) * arms.engine.answers
    return max(0.0, arms.engine.truncated - explained)


def _weights(bound: float) -> tuple[float, float]:
    """What one failure and one valid answer add to the log-likelihood ratio."""
    good, bad = GOOD * bound, min(BAD * bound, (1 + bound) / 2)
    if bad >= 1:
        return 0.0, 0.0
    return math.log(bad / good), math.log((1 - bad) / (1 - good))


def _wilson_upper(hits: int, trials: int) -> float:
    rate, z2 = hits / trials, Z * Z
    spread = Z * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return (rate + z2 / (2 * trials) + spread) / (1 + z2 / trials)

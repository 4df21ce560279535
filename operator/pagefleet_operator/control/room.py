"""Whether the pool has the room for a route's requests in its fallback precision. Pure arithmetic on shares.

An engine does not say how much of its pool a route holds. A route's share of the prompts that began in the last minute
stands for it, each weighed by the bytes of a token in its precision. That is exact where requests are of equal length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pagefleet_engine.contract.precision import Precision

HIGHEST_USE: Final = 0.90
"""KV use up to which a move is allowed: above it, requests would be swapped."""
FEWEST_PROMPTS: Final = 20
"""Below this nothing is known of the shares, and the whole load counts as the route's."""
TOKENS_PER_FRAME: Final = {
    Precision.BF16: 16,
    Precision.FP8_E4M3: 32,
    Precision.FP8_E5M2: 32,
    Precision.INT8: 30,
    Precision.INT4: 56,
}
"""With the usual block size and a head of 64; other layouts differ by less than a tenth."""


def use_after_move(
    usage: Sequence[float], begun: Mapping[tuple[str, str], int], route: str, old: Precision, new: Precision
) -> float:
    """The mean KV use once all requests of the route keep their KV in the other precision."""
    mean = sum(usage) / len(usage) if usage else 0.0
    if sum(begun.values()) < FEWEST_PROMPTS:
        return mean * _bytes(new, new) / _bytes(old, new)
    before = sum(number * _bytes(precision, old) for (_, precision), number in begun.items())
    moving = ((precision, number) for (name, precision), number in begun.items() if name == route)
    more = sum(number * (_bytes(new, new) - _bytes(precision, old)) for precision, number in moving)
    return mean * (1 + more / before)


def _bytes(precision: str, otherwise: Precision) -> float:
    """Of a token, in frames; `mixed` and what is unknown count as another precision."""
    known = Precision(precision) if precision in set(Precision) else otherwise
    return 1 / TOKENS_PER_FRAME[known]

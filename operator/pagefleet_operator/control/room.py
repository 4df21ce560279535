"""Whether the pool has the room for a route's requests in its fallback precision. Pure arithmetic on shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagefleet_engine.contract.precision import Precision

HIGHEST_USE: Final = 0.90
"""KV use up to which a move is allowed: above it, requests would be swapped."""
TOKENS_PER_FRAME: Final = {
    Precision.BF16: 16,
    Precision.FP8_E4M3: 32,
    Precision.FP8_E5M2: 32,
    Precision.INT8: 30,
    Precision.INT4: 56,
}
"""With the usual block size and a head of 64; other layouts differ by less than a tenth."""


def use_after_move(usage: Sequence[float], share: float, old: Precision, new: Precision) -> float:
    """The mean KV use once this share of the requests keeps its KV in the other precision."""
    mean = sum(usage) / len(usage) if usage else 0.0
    growth = TOKENS_PER_FRAME[old] / TOKENS_PER_FRAME[new]
    return mean * (1 + share * (growth - 1))

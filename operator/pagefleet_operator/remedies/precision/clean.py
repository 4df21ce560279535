"""Whether the probes are clean: their failure rate is below the bound, at any time one cares to look.

The average of two likelihood ratios, of a rate far below the bound and of one somewhat below, each against the bound
itself. For every rate at or above the bound it is a supermartingale, so it reaches 1/beta
with a chance of at most beta.
"""

from __future__ import annotations

import math
from typing import Final

from pagefleet_operator.remedies.precision.counts import Tally
from pagefleet_operator.remedies.precision.fisher import log_sum
from pagefleet_operator.remedies.precision.screen import MIN_BOUND

BELOW: Final = (0.1, 0.4)


def is_clean(probes: Tally, bound: float, beta: float) -> bool:
    """Whether the probes' failure rate is below the bound, wrong with a chance of at most beta."""
    if bound >= 1:
        return True
    return log_evidence(probes, max(bound, MIN_BOUND)) >= -math.log(beta)


def log_evidence(probes: Tally, bound: float) -> float:
    """log of the evidence for a rate below the bound; 0 < bound < 1."""
    return log_sum([_log_ratio(probes, share * bound, bound) for share in BELOW]) - math.log(len(BELOW))


def _log_ratio(probes: Tally, rate: float, bound: float) -> float:
    return probes.failed * math.log(rate / bound) + probes.valid * math.log((1 - rate) / (1 - bound))

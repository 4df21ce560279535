"""The limits that the states go by: those of the spec as numbers, and our own.

Every test begun may be wrong with a chance of `ALPHA`. `REST` keeps a route to four tests in any 100,000 answers, so
that the chance of a false move there is at most 1 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from pagefleet_operator.api.quantities import parse_duration, parse_share
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec

ALPHA: Final = 0.0025
BETA: Final = 0.05
PROBE_ALPHA: Final = 0.05
REST: Final = (8_000, 16_000, 40_000)
"""Answers between two tests: after the first one without a move, the second, and so on; the last one from then on."""
FORGET_AFTER: Final = 100_000
"""Answers without a test after which the rests begin with the shortest again."""
TEST_SHARE: Final = 0.5
PROBE_CONTROL_SHARE: Final = 0.9
MAX_FLAPS: Final = 3
FLAPS_WITHIN_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one route."""

    bound: float
    min_samples: int
    window: int
    return_after_s: float

    @classmethod
    def of(cls, spec: KvPrecisionSpec) -> Self:
        """As numbers."""
        return cls(
            bound=parse_share(spec.max_schema_failure_rate),
            min_samples=spec.min_samples,
            window=spec.window_requests,
            return_after_s=parse_duration(spec.return_after).total_seconds(),
        )

    @property
    def test_answers(self) -> int:
        """How many answers a test may take."""
        return max(2_000, 4 * self.window)

    @property
    def held_answers(self) -> int:
        """For how many answers a difference counts for which there is no room."""
        return 2 * self.window

    @property
    def probe_answers(self) -> int:
        """How many answers probing may take; a tenth of them are probes."""
        return max(10_000, 20 * self.window, 20 * self.min_samples)


def rest_after(tests: int) -> int:
    """Answers that must pass after so many tests without a move."""
    return REST[min(max(tests, 1), len(REST)) - 1]

"""What is said about one condition."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagefleet_operator.api.conditions import ConditionStatus, Reason

TRUE: Final = ConditionStatus.TRUE
FALSE: Final = ConditionStatus.FALSE
UNKNOWN: Final = ConditionStatus.UNKNOWN


class Verdict(NamedTuple):
    """Status, reason, and a sentence for people."""

    status: ConditionStatus
    reason: Reason
    message: str

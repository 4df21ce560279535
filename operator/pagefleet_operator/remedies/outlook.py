"""What one look at a fleet leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator.api.status import Decision, Remedy
from pagefleet_operator.remedies.memory import Memory
from pagefleet_operator.remedies.reasons import HoldReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Something that a remedy does not do now, and why."""

    remedy: Remedy
    reason: HoldReason
    message: str
    subject: str | None = None  # the pod it is about; None: the service


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What should be so from now on. Applying it twice changes nothing the second time."""

    caps: Mapping[str, int]  # pod -> desired cap; a pod that is absent is left alone
    start_cap: int | None  # what a new pod should start with; None: what the spec says
    max_model_len: int | None  # for every ready pod; None: leave it alone
    replicas: int
    decisions: tuple[Decision, ...]  # new ones, in the order in which they were made
    holds: tuple[Hold, ...]
    memory: Memory

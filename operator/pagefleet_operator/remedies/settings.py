"""Intervals and steps of the control loop, in one place, so that simulations and demos can use faster ones."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Why each number is what it is: docs/remedies.md. All times are of a monotonic clock."""

    look_every_s: float = 5.0
    """Time between two looks at a pod."""
    shortest_look_s: float = 1.0
    """Least time between two looks at a service of which a busy route is tested."""
    answers_per_look: int = 50
    """Answers of a tested route that one look should hold at most: a test passes over looks, and ends with one."""
    stale_after_s: float = 15.0
    """Age from which a sample is not acted on: three missed looks."""
    window_s: float = 60.0
    """How long a condition is watched before anything but a cut follows from it."""
    cut_factor: float = 0.75
    """The new cap as a share of the running requests."""
    raise_share: float = 1 / 16
    """A raise as a share of the highest cap, at least 1."""
    raise_every_s: float = 30.0
    """Least time between two changes of a pod's cap, unless the later one is a cut."""
    canary_s: float = 60.0
    """How long the first pod holds a raise before the others get it."""
    judge_s: float = 120.0
    """Trouble within this time after a raise is taken as the raise's doing."""
    turn_s: float = 3600.0
    """At most two changes of direction of one cap in this time. Doubled after every raise that did harm."""
    most_doublings: int = 3
    kv_room: float = 0.90
    """KV use that a raised cap may be expected to reach."""
    tolerance: float = 0.10
    """Dead band around every target."""
    latency_quantile: float = 0.90
    """The share of requests or tokens for which a latency target should hold."""
    min_observations: int = 20
    """Observed latencies below which a quantile says nothing."""
    return_after_s: float = 300.0
    """Quiet time after which a cap, and the length of requests, go back towards what the spec starts with."""
    patience_s: float = 120.0
    """How long raises of the cap may try to end a queue before a replica is added all the same."""
    starting_counts_s: float = 600.0
    """How long a pod that starts counts as capacity on its way."""
    down_every_s: float = 60.0
    """Least time between two removals when `behavior` names no policy."""
    fresh_share: float = 0.80
    """Share of the ready pods that must be measured before a replica is removed; the others count as full."""
    reapply_after_s: float = 15.0
    """How long an engine may report another cap than the desired one before that is called drift."""
    advice_every_s: float = 300.0
    """Least time between two equal pieces of advice in Advisory mode."""

    @property
    def answer_within_s(self) -> float:
        """How long a look waits for an engine's answer, and then for its change: others must not be stale meanwhile."""
        return self.stale_after_s / 3

    def paced(self, pace: float) -> LoopSettings:
        """All times multiplied by `pace`: a small fleet on fast hardware, or a demonstration, need not wait as long."""
        times = [field.name for field in fields(self) if field.name.endswith("_s")]
        return replace(self, **{name: getattr(self, name) * pace for name in times})

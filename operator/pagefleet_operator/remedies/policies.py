"""How far replicas may move in one step: `behavior` as HorizontalPodAutoscaler reads it.

    Pods 2 in 60 s       at most 2 more than 60 s ago
    Percent 50 in 60 s   at most half as many again as 60 s ago, rounded away from where it comes
    selectPolicy         Max the farthest of them, Min the nearest, Disabled none

Without policies: one replica at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagefleet_operator.api.remedy_spec import ScaleDownRules, ScaleUpRules, ScalingPolicy

Steps = Sequence[tuple[float, int]]
"""When, and by how many."""


def highest_allowed(replicas: int, rules: ScaleUpRules, steps: Steps, now_s: float) -> int:
    """The most replicas that a step up may lead to now."""
    if rules.select_policy == "Disabled":
        return replicas
    if not rules.policies:
        return replicas + 1
    reach = [_up(policy, replicas - _changed(steps, policy, now_s, sign=1)) for policy in rules.policies]
    return max(replicas, min(reach) if rules.select_policy == "Min" else max(reach))


def lowest_allowed(replicas: int, rules: ScaleDownRules, steps: Steps, now_s: float, *, every_s: float) -> int:
    """The fewest replicas that a step down may lead to now; `every_s` is the period when no policy is given."""
    if rules.select_policy == "Disabled":
        return replicas
    policies = rules.policies
    if not policies:
        lately = any(change < 0 and now_s - at_s < every_s for at_s, change in steps)
        return replicas if lately else replicas - 1
    reach = [_down(policy, replicas - _changed(steps, policy, now_s, sign=-1)) for policy in policies]
    return min(replicas, max(reach) if rules.select_policy == "Min" else min(reach))


def longest_period_s(up: ScaleUpRules, down: ScaleDownRules) -> float:
    """How long steps have to be remembered."""
    return max([60.0, *(float(policy.period_seconds) for policy in (*up.policies, *down.policies))])


def _changed(steps: Steps, policy: ScalingPolicy, now_s: float, *, sign: int) -> int:
    return sum(change for at_s, change in steps if change * sign > 0 and now_s - at_s < policy.period_seconds)


def _up(policy: ScalingPolicy, before: int) -> int:
    return before + policy.value if policy.type == "Pods" else math.ceil(before * (1 + policy.value / 100))


def _down(policy: ScalingPolicy, before: int) -> int:
    return before - policy.value if policy.type == "Pods" else math.floor(before * (1 - policy.value / 100))

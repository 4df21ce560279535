"""The rules of scaling, one sentence each; caps are at their maximum, so that tuning cannot help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.remedy_spec import ScaleDownRules, ScaleUpRules
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.fleet import StartingPod
from pagefleet_operator.remedies.memory import ScaleMemory, Turns
from pagefleet_operator.remedies.policies import highest_allowed, lowest_allowed
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Invalid, Missing
from tests.operator.remedies.fleets import NOW, known, pod, view

R, H = RemedyReason, HoldReason
BUSY = {"running": 32, "kv": 0.7}
IDLE = {"running": 2, "kv": 0.1}
SWAPS = {Metric.SWAPS: 1, Metric.PREEMPTIONS: 1}


def fleet(*pods, memory=None, scaling=None, tuning="Off", **fields):
    """One look; the memory as after a long time in which `wants` replicas would have done."""
    remembered = known(*pods, caps=[32] * len(pods))
    scale = replace(remembered.scale, **(memory or {}))
    return look(
        view(*pods, tuning=tuning, scaling={"minReplicas": 1} | (scaling or {}), **fields),
        replace(remembered, scale=scale),
    )


def result(outlook):
    steps = [(each.from_, each.to, each.reason) for each in outlook.decisions]
    return steps, [hold.reason for hold in outlook.holds]


def quiet_for(seconds, replicas):
    return {"wants": tuple((NOW - ago, replicas) for ago in range(seconds, 0, -5))}


UP = {
    "a queue above the target adds one": (
        {"pods": [pod(waiting=6, **BUSY)]},
        ([("1", "2", R.QUEUE_ABOVE_TARGET)], []),
    ),
    "within the tolerance nothing is added": ({"pods": [pod(waiting=5, **BUSY)]}, ([], [])),
    "the target is per replica": ({"pods": [pod("a", waiting=6, **BUSY), pod("b", **BUSY)]}, ([], [])),
    "a short queue is none": ({"pods": [pod(**BUSY, last={"waiting": 50})]}, ([], [])),
    "refused requests are demand": (
        {"pods": [pod(waiting=1, before={Metric.REFUSED: 1}, **BUSY)]},
        ([("1", "2", R.REQUESTS_REFUSED)], []),
    ),
    "late first tokens add one": (
        {"pods": [pod(first_token_s=4.0, **BUSY)], "targets": {"timeToFirstToken": "2s"}},
        ([("1", "2", R.FIRST_TOKEN_TOO_SLOW)], []),
    ),
    "slow tokens add one when no cap is tuned": (
        {"pods": [pod(inter_token_s=0.4, **BUSY)], "targets": {"interTokenLatency": "100ms"}},
        ([("1", "2", R.TOKENS_TOO_SLOW)], []),
    ),
    "never above max": ({"pods": [pod(waiting=90, **BUSY)], "scaling": {"maxReplicas": 1}}, ([], [H.AT_MAXIMUM])),
    "a pod that cannot be measured counts as idle": (
        {"pods": [pod("a", waiting=12, **BUSY), pod("b", waiting=Missing("x"), **BUSY)]},
        ([("2", "3", R.QUEUE_ABOVE_TARGET)], []),
    ),
    "nothing is known: nothing is added": ({"pods": [pod(waiting=Invalid("x"), **BUSY)]}, ([], [])),
    "half a window is none": ({"pods": [pod(waiting=50, looks=9, **BUSY)]}, ([], [])),
    "a pod that starts is capacity on its way": (
        {
            "pods": [pod(waiting=50, **BUSY)],
            "replicas": 2,
            "starting": (StartingPod(name="b", age_s=300),),
        },
        ([], [H.REPLICA_STARTING]),
    ),
    "but not for ever": (
        {
            "pods": [pod(waiting=50, **BUSY)],
            "replicas": 2,
            "starting": (StartingPod(name="b", age_s=700),),
        },
        ([("2", "3", R.QUEUE_ABOVE_TARGET)], []),
    ),
    "nor does a step that is under way count twice": (
        {"pods": [pod(waiting=50, **BUSY)], "replicas": 2, "memory": {"awaited": 2, "awaited_s": NOW - 60}},
        ([], [H.REPLICA_STARTING]),
    ),
    "after a step a whole window must say it again": (
        {"pods": [pod(waiting=50, **BUSY)], "memory": {"settled_s": NOW - 55}},
        ([], []),
    ),
    "the need must last for scaleUp's window": (
        {"pods": [pod(waiting=50, **BUSY)], "scaling": {"behavior": {"scaleUp": {"stabilizationWindowSeconds": 60}}}}
        | {"memory": quiet_for(60, 1)},
        ([], [H.STABILIZING]),
    ),
    "scaleUp may be disabled": (
        {"pods": [pod(waiting=50, **BUSY)], "scaling": {"behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}},
        ([], [H.POLICY_LIMIT]),
    ),
    "policies allow more than one at a time": (
        {
            "pods": [pod(waiting=50, **BUSY)],
            "scaling": {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 2}]}}},
        },
        ([("1", "3", R.QUEUE_ABOVE_TARGET)], []),
    ),
    "an alert adds one": ({"pods": [pod(**IDLE)], "alert": "SlowAnswers"}, ([("1", "2", R.ALERT_FIRED)], [])),
    "but never above max": (
        {"pods": [pod(**IDLE)], "alert": "SlowAnswers", "scaling": {"maxReplicas": 1}},
        ([], [H.AT_MAXIMUM]),
    ),
    "another autoscaler holds everything": (
        {"pods": [pod(waiting=50, **BUSY)], "foreign_autoscaler": "HorizontalPodAutoscaler web"},
        ([], [H.FOREIGN_AUTOSCALER]),
    ),
}


@pytest.mark.parametrize(("case", "want"), UP.values(), ids=UP.keys())
def test_up(case, want):
    case = dict(case)
    assert result(fleet(*case.pop("pods"), **case)) == want


def two(**shown):
    return [pod("a", **(IDLE | shown)), pod("b", **IDLE)]


LONG = quiet_for(300, 1)
DOWN = {
    "a quiet fleet loses one": ({"pods": two()}, ([("2", "1", R.REPLICA_NOT_NEEDED)], [])),
    "not before the window is over": (
        {"pods": two(), "memory": LONG | {"settled_s": NOW - 200}},
        ([], [H.STABILIZING]),
    ),
    "one look that needed them is enough to keep them": (
        {"pods": two(), "memory": {"wants": (*LONG["wants"][:30], (NOW - 140, 2))}},
        ([], [H.STABILIZING]),
    ),
    "never below min": ({"pods": two(), "scaling": {"minReplicas": 2}}, ([], [])),
    "KV use counts: the sum must fit into one less": ({"pods": two(kv=0.65)}, ([], [])),
    "running requests must fit under the caps that are left": ({"pods": two(running=28)}, ([], [])),
    "a queue that one less could not hold keeps them": ({"pods": two(waiting=5)}, ([], [])),
    "swapping keeps them": ({"pods": two(before=SWAPS)}, ([], [])),
    "refusals keep them": ({"pods": two(before={Metric.REFUSED: 0}, new={Metric.REFUSED: 1})}, ([], [])),
    "first tokens that one less would make late keep them": (
        {"pods": two(first_token_s=1.9), "targets": {"timeToFirstToken": "3s"}},
        ([], []),
    ),
    "missing data holds": ({"pods": two(kv=Missing("x"))}, ([], [H.METRICS_MISSING])),
    "invalid data holds": ({"pods": two(waiting=Invalid("x"))}, ([], [H.METRICS_INVALID])),
    "half a window holds": ({"pods": two(looks=9)}, ([], [H.WINDOW_FILLING])),
    "a known zero is not missing": (
        {"pods": two(running=0, kv=0.0)},
        ([("2", "1", R.REPLICA_NOT_NEEDED)], []),
    ),
    "a draining pod is waited for": ({"pods": two(), "draining": ("c",)}, ([], [H.POD_DRAINING])),
    "a fleet that is not complete loses none": ({"pods": two(), "replicas": 3}, ([], [H.FLEET_INCOMPLETE])),
    "one at a time and minute": (
        {"pods": two(), "memory": LONG | {"steps": ((NOW - 50, -1),)}},
        ([], [H.POLICY_LIMIT]),
    ),
    "scaleDown may be disabled": (
        {"pods": two(), "scaling": {"behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}},
        ([], [H.POLICY_LIMIT]),
    ),
    "a fleet that turned twice waits an hour": (
        {"pods": two(), "memory": LONG | {"turns": Turns(rising=True, at_s=(NOW - 3000, NOW - 2000))}},
        ([], [H.TURNED_RECENTLY]),
    ),
}


@pytest.mark.parametrize(("case", "want"), DOWN.values(), ids=DOWN.keys())
def test_down(case, want):
    case = {"memory": LONG} | case
    assert result(fleet(*case.pop("pods"), **case)) == want


def test_one_of_six_pods_may_be_unmeasured_and_counts_as_full():
    pods = [pod(name, running=2, kv=0.05) for name in "abcde"]
    for last in (pod("f", kv=Missing("x")), pod("f", running=2, kv=0.05)):
        outlook = fleet(*pods, last, memory=quiet_for(300, 5), scaling={"maxReplicas": 6})
        assert result(outlook) == ([("6", "5", R.REPLICA_NOT_NEEDED)], [])


def test_a_hold_names_the_pod_and_the_metric():
    (hold,) = fleet(*two(kv=Missing("it was not sent")), memory=LONG).holds
    assert (hold.subject, hold.message) == (
        "a",
        "nothing is done about a: its vllm:kv_cache_usage_perc is missing: it was not sent",
    )


BOUNDS = {
    "below min": ({"replicas": 0, "scaling": {"minReplicas": 2}}, 2),
    "above max": ({"replicas": 9, "scaling": {"maxReplicas": 3}}, 3),
    "Off keeps the minimum": ({"replicas": 3, "scaling": {"mode": "Off"}}, 1),
    "in Advisory mode, too": ({"replicas": 9, "scaling": {"mode": "Advisory", "maxReplicas": 3}}, 3),
}


@pytest.mark.parametrize(("case", "want"), BOUNDS.values(), ids=BOUNDS.keys())
def test_bounds_are_kept_whatever_is_known(case, want):
    outlook = fleet(**case)
    assert outlook.replicas == want
    assert [each.reason for each in outlook.decisions] == [R.OUT_OF_BOUNDS]


def test_advice_changes_nothing_and_is_not_repeated_at_once():
    pods = [pod(waiting=50, **BUSY)]
    first = fleet(*pods, scaling={"mode": "Advisory"})
    assert [(each.to, each.advisory) for each in first.decisions] == [("2", True)]
    assert first.replicas == 1
    again = look(view(*pods, tuning="Off", scaling={"mode": "Advisory"}), first.memory)
    assert again.decisions == ()


def test_without_autoscaling_nothing_is_decided():
    outlook = look(view(pod(waiting=50, **BUSY), replicas=7, tuning="Off"), known(caps=[]))
    assert (outlook.replicas, outlook.decisions) == (7, ())


QUEUE = {"running": 16, "waiting": 20, "cap": 16, "kv": 0.5}


def tuned(memory, *, canary_since=None, **shown):
    """A pod whose cap can still be raised."""
    subject = pod(**(QUEUE | shown))
    remembered = known(subject, caps=[16])
    return look(
        view(subject, scaling={"minReplicas": 1}),
        replace(remembered, scale=replace(remembered.scale, **memory)),
    )


def test_a_raise_comes_before_a_replica():
    assert result(tuned({})) == ([("16", "18", R.QUEUE_WITH_ROOM)], [H.TUNING_FIRST])


def test_a_raise_that_did_not_help_in_time_makes_way_for_a_replica_and_is_not_made_beside_it():
    outlook = tuned({"troubled_s": NOW - 120})
    assert result(outlook) == ([("1", "2", R.QUEUE_ABOVE_TARGET)], [])
    assert outlook.caps == {"a": 16}


def test_a_cut_and_a_replica_may_come_together():
    subject = pod(running=24, waiting=20, new=SWAPS)
    outlook = look(view(subject, scaling={"minReplicas": 1}), known(subject, caps=[32]))
    assert result(outlook)[0] == [("32", "18", R.REQUESTS_SWAPPED), ("1", "2", R.QUEUE_ABOVE_TARGET)]


def test_slow_tokens_wait_for_the_cut_to_help():
    subject = pod(running=32, inter_token_s=0.4)
    given = view(subject, scaling={"minReplicas": 1}, targets={"interTokenLatency": "100ms"})
    outlook = look(given, known(subject, caps=[32]))
    assert result(outlook) == ([("32", "24", R.TOKENS_TOO_SLOW)], [H.TUNING_FIRST])


def test_nobody_is_removed_while_a_cut_drains_down():
    pods = two(new=SWAPS)
    remembered = known(*pods, caps=[32, 32])
    outlook = look(
        view(*pods, scaling={"minReplicas": 1}),
        replace(remembered, scale=replace(remembered.scale, **LONG)),
    )
    assert outlook.replicas == 2
    assert outlook.memory.scale.wants[-1] == (NOW, 2)


UPWARD = {
    "one at a time without policies": ({}, (), 5),
    "as many pods as the policy says": ({"policies": [("Pods", 3, 60)]}, (), 7),
    "percent are rounded up": ({"policies": [("Percent", 10, 60)]}, (), 5),
    "what was added in the period counts": ({"policies": [("Pods", 3, 60)]}, ((NOW - 59, 2),), 5),
    "what was added before does not": ({"policies": [("Pods", 3, 60)]}, ((NOW - 60, 2),), 7),
    "the farthest policy counts": ({"policies": [("Pods", 1, 60), ("Percent", 100, 60)]}, (), 8),
    "or the nearest": ({"policies": [("Pods", 1, 60), ("Percent", 100, 60)], "select_policy": "Min"}, (), 5),
    "or none": ({"select_policy": "Disabled"}, (), 4),
}


def policies(given):
    found = [{"type": kind, "value": value, "period_seconds": period} for kind, value, period in given]
    return {"policies": found}


@pytest.mark.parametrize(("rules", "steps", "want"), UPWARD.values(), ids=UPWARD.keys())
def test_how_far_up(rules, steps, want):
    made = ScaleUpRules.model_validate(rules | policies(rules.get("policies", ())))
    assert highest_allowed(4, made, steps, NOW) == want


DOWNWARD = {
    "one at a time without policies": ({}, (), 3),
    "and not again in the same minute": ({}, ((NOW - 59, -1),), 4),
    "percent are rounded down": ({"policies": [("Percent", 10, 60)]}, (), 3),
    "what was removed in the period counts": ({"policies": [("Pods", 3, 60)]}, ((NOW - 59, -2),), 3),
    "the farthest policy counts": ({"policies": [("Pods", 1, 60), ("Percent", 50, 60)]}, (), 2),
    "or the nearest": ({"policies": [("Pods", 1, 60), ("Percent", 50, 60)], "select_policy": "Min"}, (), 3),
    "or none": ({"select_policy": "Disabled"}, (), 4),
}


@pytest.mark.parametrize(("rules", "steps", "want"), DOWNWARD.values(), ids=DOWNWARD.keys())
def test_how_far_down(rules, steps, want):
    made = ScaleDownRules.model_validate(rules | policies(rules.get("policies", ())))
    assert lowest_allowed(4, made, steps, NOW, every_s=60) == want


def test_a_blackout_starts_the_window_anew():
    """Half an hour without data, then zeros at first: nothing is removed for a whole stabilisation window."""
    outlook = fleet(*two(), memory={"wants": tuple((NOW - ago, 2) for ago in range(300, 0, -5))})
    assert result(outlook) == ([], [H.STABILIZING])
    assert isinstance(outlook.memory.scale, ScaleMemory)

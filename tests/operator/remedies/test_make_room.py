"""Room for a route in its fallback precision: a replica first, else lower caps, and nothing that takes it away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.fleet import RoomNeed, StartingPod
from pagefleet_operator.remedies.reasons import RemedyReason
from tests.operator.remedies.fleets import NOW, known, pod, view

R = RemedyReason
NEED = RoomNeed(route="tools", needed_share=1.2, allowed_share=0.9)
BUSY = {"running": 20, "kv": 0.6}
CUT = [("a", "32", "15", R.ROOM_FOR_PRECISION)]
ONE_MORE = [(None, "1", "2", R.ROOM_FOR_PRECISION)]
CASES = {
    "without autoscaling the cap goes down": ({}, CUT),
    "with a replica to spare one is added": ({"scaling": {"maxReplicas": 2}}, ONE_MORE),
    "at maxReplicas the cap goes down": ({"scaling": {"maxReplicas": 1}}, CUT),
    "another autoscaler leaves the cap": ({"scaling": {"maxReplicas": 2}, "foreign_autoscaler": "HPA web"}, CUT),
    "autoscaling that adds nothing leaves the cap": (
        {"scaling": {"maxReplicas": 2, "behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}},
        CUT,
    ),
    "a replica on its way is waited for": (
        {"scaling": {"maxReplicas": 1}, "starting": (StartingPod(name="b", age_s=20.0),)},
        [],
    ),
    "no need, no change": ({"room": None}, []),
    "tuning that is off changes nothing": ({"tuning": "Off"}, []),
}


def changes(outlook):
    return [(each.subject, each.from_, each.to, each.reason) for each in outlook.decisions]


@pytest.mark.parametrize(("fields", "want"), CASES.values(), ids=CASES.keys())
def test_who_makes_room(fields, want):
    subject = pod("a", cap=32, **BUSY)
    assert changes(look(view(subject, **({"room": NEED} | fields)), known(subject, caps=[32]))) == want


def test_the_decision_says_what_for():
    subject = pod("a", cap=32, **BUSY)
    (decision,) = look(view(subject, room=NEED), known(subject, caps=[32])).decisions
    assert decision.message == (
        "with route tools in its fallback precision 120% of the KV pool would be used, and 90% may: "
        "with 20 running the cap of a goes from 32 to 15"
    )


def test_never_below_the_minimum():
    subject = pod("a", cap=32, running=4, kv=0.6)
    assert changes(look(view(subject, room=NEED), known(subject, caps=[32]))) == [
        ("a", "32", "4", R.ROOM_FOR_PRECISION)
    ]


def test_one_step_in_a_window():
    subject = pod("a", cap=32, **BUSY)
    for ago, want in ((59, []), (60, CUT)):
        assert changes(look(view(subject, room=NEED), known(subject, caps=[32], changed_s=NOW - ago))) == want


def test_pressure_comes_first():
    subject = pod("a", cap=32, new={Metric.SWAPS: 1, Metric.PREEMPTIONS: 1}, **BUSY)
    assert changes(look(view(subject, room=NEED), known(subject, caps=[32]))) == [("a", "32", "15", R.REQUESTS_SWAPPED)]


def test_nothing_takes_the_room_away():
    waiting = pod("a", running=16, waiting=3, kv=0.5, cap=16)
    need = replace(NEED, needed_share=0.9)
    assert changes(look(view(waiting), known(waiting, caps=[16]))) == [("a", "16", "18", R.QUEUE_WITH_ROOM)]
    assert changes(look(view(waiting, room=need), known(waiting, caps=[16]))) == []

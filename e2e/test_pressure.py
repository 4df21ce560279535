"""The story of a pool that is too small for its load, with the operator killed at its height: it ends all the same."""

from __future__ import annotations

import pytest

from e2e import demo
from e2e.operator_pods import kill_operator
from e2e.stories import pressure

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def fast_operator(kube, operator, built_images):
    demo.install_operator(kube, built_images["operator"], pace=pressure.PACE)
    yield
    demo.install_operator(kube, built_images["operator"])


@pytest.fixture(scope="module")
def told(kube, fast_operator, built_images, namespace):
    image = built_images["engine-demo"]
    pressure.begin(kube, image, namespace, print)
    return pressure.tell(kube, image, namespace, print, at_the_height=lambda: kill_operator(kube))


def test_no_request_failed_and_no_stream_was_cut(told):
    assert (told.load.failed, told.load.cut, told.load.refused, told.load.errors) == (0, 0, 0, ())
    assert told.load.done > pressure.CLIENTS


def test_the_remedies_came_in_their_order(told):
    expected = [
        ("Tune", "RequestsSwapped"),
        ("Scale", "QueueAboveTarget"),
        ("Scale", "ReplicaNotNeeded"),
    ]
    assert [reason for reason in told.diary.reasons() if reason in expected] == expected
    assert told.diary.reasons().index(("Tune", "QuietAgain")) > told.diary.reasons().index(expected[0])


def test_every_decision_has_its_numbers(told):
    first = told.diary.decisions[0]
    assert (first["reason"], first["from"]) == ("RequestsSwapped", "24")
    assert 2 <= int(first["to"]) < 24
    assert all(decision["measurements"] for decision in told.diary.decisions)


def test_a_replica_served_at_every_moment(told):
    assert min(told.diary.ready) >= 1
    assert max(told.diary.ready) == 2

"""Decisions as people hear of them: each one once, none lost, whatever asked for it."""

import pytest

from pagefleet_operator.alerts import Alert
from pagefleet_operator.labels import LEAVING
from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1", "maxNumSeqs": {"initial": 32, "min": 4, "max": 32}}
SCALED = {"engine": ENGINE, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}


@pytest.fixture
def world():
    return World()


async def test_every_cut_of_a_large_fleet_is_counted_and_logged_and_no_event_hides_another(world, caplog):
    caplog.set_level("INFO")
    await world.make(engine=ENGINE, replicas=16)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    names = {raw["metadata"]["name"] for raw in world.pods()}
    messages = [f"the cap of {name} goes from 32 to 15" for name in names]
    assert all(message in caplog.text for message in messages)
    labels = {"remedy": "Tune", "reason": "RequestsSwapped", "advisory": "false"}
    assert world.registry.get_sample_value("pagefleet_operator_decisions_total", labels) == 16
    subjects = {decision["subject"] for decision in (await world.status())["decisions"]}
    assert (len(subjects), world.events().count("RequestsSwapped")) == (10, 10)


@pytest.mark.parametrize(
    ("scaling", "to", "message"),
    [
        ({"minReplicas": 3, "maxReplicas": 4}, "3", "replicas lie within 3 and 4: they go from 1 to 3"),
        (
            {"minReplicas": 2, "maxReplicas": 4, "mode": "Off"},
            "2",
            "autoscaling is Off, which keeps minReplicas: they go from 1 to 2",
        ),
    ],
    ids=["Auto", "Off"],
)
async def test_bounds_that_move_lead_to_one_decision(world, scaling, to, message):
    await world.make(**SCALED)
    await world.pass_time(10)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"autoscaling": scaling}})
    await world.reconciler(KEY)
    await world.pass_time(60)
    [decision] = (await world.status())["decisions"]
    assert (decision["reason"], decision["from"], decision["to"], decision["message"]) == (
        "OutOfBounds",
        "1",
        to,
        message,
    )
    assert len(world.pods()) == int(to)


def fire(world, identity="f1", **labels):
    alert = Alert(name="QueueLong", service=KEY, identity=identity, wants_replica=True, **labels)
    return world.alerts.hear(alert, world.fleets.observations, world.seconds())


async def test_an_alert_adds_one_replica_within_the_bounds(world):
    await world.make(**SCALED)
    await world.pass_time(120)
    fire(world)
    await world.look()
    assert (await world.status())["desiredReplicas"] == 2
    assert ("Scale", "AlertFired") in await world.reasons()
    fire(world)
    await world.pass_time(120)
    assert (await world.status())["desiredReplicas"] == 2


async def test_an_alert_that_meets_a_starting_pod_gets_its_replica_later(world):
    await world.make(**SCALED)
    await world.pass_time(120)
    fire(world)
    await world.look()
    fire(world, "f2")
    await world.look()
    assert (await world.status())["desiredReplicas"] == 2
    await world.pass_time(120)
    assert (await world.status())["desiredReplicas"] == 3


async def test_an_engine_that_does_not_answer_is_not_taken_for_idle_when_a_pod_has_to_leave(world):
    await world.make(engine=ENGINE, replicas=2)
    world.numbers = {"running": 3}
    silent, answering = sorted(world.pods(), key=lambda raw: raw["metadata"]["name"])
    world.engines.unreachable.add(silent["metadata"]["uid"])
    await world.look()
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"replicas": 1}})
    await world.reconciler(KEY)
    marked = [raw["metadata"]["name"] for raw in world.pods() if LEAVING in raw["metadata"]["annotations"]]
    assert marked == [answering["metadata"]["name"]]


async def test_holds_are_counted_by_service(world):
    await world.make(**SCALED)
    await world.look()
    world.loop._count_holds()
    assert (
        world.registry.get_sample_value("pagefleet_operator_holds", {"remedy": "Tune", "reason": "MetricsMissing"}) == 1
    )

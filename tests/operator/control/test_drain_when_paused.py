"""A pod that refuses requests serves nobody: it ends its drain whatever happens to the spec, and nothing new begins."""

from datetime import timedelta

import pytest

from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1"}
EDITS = {
    "paused": {"paused": True},
    "paused, and wanted again": {"paused": True, "replicas": 2},
    "an unacceptable spec": {"drain": {"timeout": "soon"}},
}


async def live(world, seconds):
    for _ in range(seconds):
        await world.reconciler(KEY)
        world.cluster.now += timedelta(seconds=1)
        world.run_kubelet()


async def refusing():
    """One of two pods refuses late arrivals, and seven requests run in it."""
    world = World()
    await world.make(engine=ENGINE, replicas=2)
    for uid in world.engines.engines:
        world.engines.set_state(uid, in_flight=7, running=7)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"replicas": 1}})
    await live(world, 10)
    assert sorted(engine.state.phase for engine in world.engines.engines.values()) == ["ready", "refusing"]
    return world


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
async def test_a_drain_that_has_begun_ends(edit):
    world = await refusing()
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": edit})
    await live(world, 60)
    assert len(world.pods()) == 2, "its requests run"
    for uid in world.engines.engines:
        world.engines.set_state(uid, in_flight=0, running=0)
    await live(world, 10)
    [left] = world.pods()
    assert world.engines.engines[left["metadata"]["uid"]].state.phase == "ready"


async def test_nothing_new_begins_while_paused():
    world = World()
    await world.make(engine=ENGINE, replicas=2)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"replicas": 1, "paused": True}})
    await live(world, 30)
    assert [engine.state.phase for engine in world.engines.engines.values()] == ["ready", "ready"]
    assert len(world.pods()) == 2

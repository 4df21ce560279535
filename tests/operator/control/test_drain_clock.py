"""A drain and the clocks: the wall clock may jump, and was another machine's when the mark was written."""

from datetime import timedelta

import pytest

from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1"}


async def draining():
    """One of two pods leaves, with seven requests in flight, and may take five minutes."""
    world = World()
    await world.make(engine=ENGINE, replicas=2, drain={"timeout": "5m"})
    for uid in world.engines.engines:
        world.engines.set_state(uid, in_flight=7, running=7)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"replicas": 1}})
    return world


async def live(world, seconds):
    """Reconciles, until a pod is gone or the time is over; returns the seconds that passed."""
    for passed in range(seconds):
        await world.reconciler(KEY)
        if len([raw for raw in world.pods() if "deletionTimestamp" not in raw["metadata"]]) < 2:
            return passed
        world.cluster.now += timedelta(seconds=1)
        world.run_kubelet()
    return seconds


@pytest.mark.parametrize("jump_s", [3600, -3600], ids=["forward", "back"])
async def test_a_jump_of_the_wall_clock_neither_cuts_nor_prolongs_a_drain(jump_s):
    world = await draining()
    assert await live(world, 10) == 10
    world.jump(jump_s)
    assert 288 <= await live(world, 400) <= 292


async def test_a_jump_back_still_lets_an_idle_engine_go():
    world = await draining()
    world.jump(-3600)
    assert await live(world, 10) == 10
    for uid in world.engines.engines:
        world.engines.set_state(uid, in_flight=0, running=0)
    assert await live(world, 10) < 5


async def test_a_restart_of_the_operator_prolongs_a_drain_by_its_timeout_at_most():
    world = await draining()
    assert await live(world, 200) == 200
    world.start_operator()
    assert 298 <= await live(world, 600) <= 302

"""A paused service: everything is looked at, nothing is decided, and what a person asks for waits."""

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1", "maxNumSeqs": {"initial": 32, "min": 4, "max": 32}}
TOOLS = {"name": "tools", "model": "smollm2-tools", "structured": "Validate"}


async def answers(world, state, *, looks=200, start=0):
    """More and more answers, four of ten wrong in FP8 alone, until the route is in this state."""
    for number in range(start + 1, start + looks):
        world.structured = [
            ("tools", "fp8_e4m3", "valid", 6 * number),
            ("tools", "fp8_e4m3", "schema_violation", 4 * number),
            ("tools", "bf16", "valid", 5 * number),
        ]
        await world.look()
        if (await world.status())["routes"][1]["state"] == state:
            return number
    return start + looks


async def set_paused(world, value):
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"paused": value}})
    await world.reconciler(KEY)


async def test_a_route_that_is_tested_stays_where_it_is_while_the_service_is_paused():
    world = World()
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    number = await answers(world, "Testing")
    await set_paused(world, True)
    told = await world.reasons()
    number = await answers(world, "Fallback", start=number)
    assert (await world.status())["routes"][1]["state"] == "Testing"
    assert await world.reasons() == told
    await set_paused(world, False)
    await answers(world, "Fallback", start=number)
    assert (await world.status())["routes"][1]["state"] == "Fallback"
    (engine,) = world.engines.engines.values()
    assert engine.config.routes[1].precision is Precision.BF16


async def test_a_reset_waits_for_the_end_of_the_pause():
    world = World()
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    await answers(world, "Fallback")
    await set_paused(world, True)
    annotations = {"metadata": {"annotations": {"pagefleet.io/reset-precision": "tools"}}}
    await world.cluster.patch(LLM_SERVICE, *KEY, annotations)
    await world.reconciler(KEY)
    await world.pass_time(30)
    assert (await world.status())["routes"][1]["state"] == "Fallback"
    await set_paused(world, False)
    await world.pass_time(10)
    assert (await world.status())["routes"][1]["state"] == "Normal"

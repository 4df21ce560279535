"""Whether a route's move fits into the pool: by its share of the load, not as if all of it were the route's."""

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.control.room import use_after_move
from pagefleet_operator.remedies.samples import Invalid
from pagefleet_operator.remedies.scrape import parse_metrics
from tests.operator.control.world import World

BF16, FP8, INT8 = Precision.BF16, Precision.FP8_E4M3, Precision.INT8
ENGINE = {"image": "registry.example/engine:1", "maxNumSeqs": {"initial": 32, "min": 4, "max": 32}}
TOOLS = {"name": "tools", "model": "smollm2-tools", "structured": "Validate"}

USES = {
    "nothing is known of the shares: as if all were the route's": ([0.4], {}, 0.8),
    "too few prompts say nothing": ([0.4], {("tools", "fp8_e4m3"): 1, ("default", "fp8_e4m3"): 18}, 0.8),
    "a tenth of the load": ([0.6], {("tools", "fp8_e4m3"): 10, ("default", "fp8_e4m3"): 90}, 0.66),
    "the whole load": ([0.4], {("tools", "fp8_e4m3"): 100}, 0.8),
    "half of it has moved for the test": ([0.6], {("tools", "fp8_e4m3"): 50, ("tools", "bf16"): 50}, 0.8),
    "what others have in the finer precision counts twice": (
        [0.6],
        {("tools", "fp8_e4m3"): 50, ("default", "bf16"): 50},
        0.8,
    ),
    "a route without requests needs no room": ([0.6], {("default", "fp8_e4m3"): 100}, 0.6),
    "the mean over pods": ([0.2, 0.6], {("tools", "fp8_e4m3"): 50, ("default", "fp8_e4m3"): 50}, 0.6),
    "an unknown precision counts as the engine's": ([0.6], {("tools", "fp8_e4m3"): 10, ("default", "mixed"): 90}, 0.66),
    "no pod is measured": ([], {("tools", "fp8_e4m3"): 100}, 0.0),
}


@pytest.mark.parametrize(("usage", "begun", "want"), USES.values(), ids=USES.keys())
def test_the_use_after_a_move(usage, begun, want):
    assert use_after_move(usage, begun, "tools", FP8, BF16) == pytest.approx(want)


def counter(*series):
    lines = [f"pagefleet:route_requests_total{{{labels}}} {value}" for labels, value in series]
    return "\n".join(["# TYPE pagefleet:route_requests_total counter", *lines]) + "\n"


IDLE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
BEGUN = {
    "by route and precision": (
        counter(('route="tools",precision="bf16"', 3), ('route="default",precision="fp8_e4m3"', 7)),
        {("tools", "bf16"): 3.0, ("default", "fp8_e4m3"): 7.0},
    ),
    "an engine that does not count them": (IDLE, {}),
    "sent twice": (counter(('route="a",precision="b"', 3), ('route="a",precision="b"', 3)), None),
    "not a number": (counter(('route="a",precision="b"', "NaN")), None),
    "of another type": (counter(('route="a",precision="b"', 3)).replace(" counter", " gauge"), None),
}


@pytest.mark.parametrize(("text", "want"), BEGUN.values(), ids=BEGUN.keys())
def test_prompts_by_route(text, want):
    found = parse_metrics(text).begun
    assert isinstance(found, Invalid) if want is None else found == want


async def answers(world, until, *, per_look=15, share=0.1, looks=200):
    """Answers of a route that fails in FP8 alone, and of which so much of the load is, until it is in a state."""
    for number in range(1, looks):
        world.structured = [
            ("tools", "fp8_e4m3", "valid", 6 * number),
            ("tools", "fp8_e4m3", "schema_violation", 4 * number),
            ("tools", "bf16", "valid", 5 * number),
        ]
        world.begun = [
            ("tools", "fp8_e4m3", per_look * number),
            ("default", "fp8_e4m3", int(per_look / share - per_look) * number),
        ]
        await world.look()
        route = (await world.status())["routes"][1]
        if until in (route["state"], route["reason"]):
            return route
    return pytest.fail(f"the route never is {until}")


async def test_a_small_route_moves_in_a_pool_that_is_more_than_half_full():
    world = World()
    await world.make(engine=ENGINE, routes=[TOOLS])
    world.numbers = {"running": 10, "usage": 0.7}
    await world.pass_time(70)
    await answers(world, "Fallback", share=0.1)


async def test_a_large_route_waits_for_room():
    world = World()
    await world.make(engine=ENGINE, routes=[TOOLS])
    world.numbers = {"running": 10, "usage": 0.7}
    await world.pass_time(70)
    route = await answers(world, "InsufficientCapacity", share=0.9)
    assert route["state"] == "Testing"
    await world.look()
    (engine,) = world.engines.engines.values()
    assert engine.config.cap < 10
    assert (await world.reasons())[-1] == ("Tune", "RoomForPrecision")
    world.numbers = {"running": engine.config.cap, "usage": 0.4}
    await world.look()
    assert (await world.status())["routes"][1]["state"] == "Fallback"
    assert engine.config.routes[1].precision is BF16

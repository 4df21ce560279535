"""A service whose numbers move within their buckets costs no write, and neither does one whose remedies wait."""

import itertools

import pytest

from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1", "maxNumSeqs": {"initial": 16, "min": 4, "max": 32}}
SCALED = {"engine": ENGINE, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
NOISE = [
    {"running": running, "waiting": waiting, "usage": usage}
    for running, waiting, usage in zip((3, 5, 4, 4, 5), (3, 4, 5, 3, 3), (0.39, 0.41, 0.38, 0.42, 0.4), strict=True)
]


async def pass_an_hour(world, numbers):
    for _, world.numbers in zip(range(360), itertools.cycle(numbers), strict=False):
        await world.look(10)


@pytest.mark.parametrize("numbers", [NOISE, [{"running": 0}]], ids=["noise within the buckets", "idle"])
async def test_no_write_in_an_hour(numbers):
    world = World()
    await world.make(**SCALED)
    for world.numbers in numbers * 20:
        await world.look()
    world.cluster.take_writes()
    await pass_an_hour(world, numbers)
    assert world.cluster.take_writes() == []


async def test_no_write_while_an_engine_does_not_answer():
    world = World()
    await world.make(**SCALED)
    await world.pass_time(30)
    world.engines.unreachable |= world.engines.engines.keys()
    await world.pass_time(60)
    world.cluster.take_writes()
    await world.pass_time(300)
    assert world.cluster.take_writes() == []


async def test_what_waits_for_a_moment_names_it_once():
    world = World()
    await world.make(**SCALED)
    for swaps in (1, 1, 2, 3):  # cut and back, until the cap has turned often enough
        world.numbers = {"running": 20, "usage": 0.99, "swaps": swaps, "preemptions": swaps}
        await world.look()
        world.numbers |= {"running": 8, "usage": 0.2}
        await world.pass_time(700)
    assert any("it may rise again at" in line for line in (await world.status())["next"])
    world.cluster.take_writes()
    await world.pass_time(120)
    assert world.cluster.take_writes() == []

"""The length of requests through the whole loop: shortened, given back, and followed where the spec moves."""

import pytest

from pagefleet_engine.contract.control import RuntimeStart
from pagefleet_operator.labels import RUNTIME_CONFIG
from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {
    "image": "registry.example/engine:1",
    "maxModelLen": 4096,
    "maxNumSeqs": {"initial": 4, "min": 4, "max": 32},
}
OPT_IN = {"mode": "Auto", "maxModelLen": {"min": 1024}}


@pytest.fixture
def world():
    return World()


def lengths(world):
    return sorted(engine.config.max_model_len for engine in world.engines.engines.values())


async def swap(world, seconds):
    """Requests are swapped although the cap is at its minimum."""
    for swaps in range(int(seconds / 5)):
        world.numbers = {"running": 4, "usage": 0.99, "swaps": swaps, "preemptions": swaps}
        await world.look()
    world.numbers = {"running": 4, "usage": 0.5, "swaps": swaps, "preemptions": swaps}


async def edit(world, **spec):
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": spec})
    await world.reconciler(KEY)


async def test_the_whole_length_comes_back_when_the_spec_allows_no_shortening_any_more(world):
    await world.make(engine=ENGINE, tuning=OPT_IN)
    await swap(world, 80)
    assert lengths(world) == [2304]
    await edit(world, tuning={"mode": "Auto", "maxModelLen": None})
    await world.look()
    assert lengths(world) == [4096]
    assert (await world.status())["tuning"]["maxModelLen"] == 4096
    assert (await world.reasons())[-1] == ("Tune", "LengthRestored")
    await world.pass_time(120)
    assert (await world.reasons()).count(("Tune", "LengthRestored")) == 1


@pytest.mark.parametrize("after", [OPT_IN, {"mode": "Auto", "maxModelLen": None}], ids=["in steps", "at once"])
async def test_a_length_that_was_forgotten_while_tuning_was_off_comes_back(world, after):
    await world.make(engine=ENGINE, tuning=OPT_IN)
    await swap(world, 80)
    await edit(world, tuning={"mode": "Off"})
    await world.pass_time(30)
    assert lengths(world) == [2304]
    assert (await world.status())["tuning"]["maxModelLen"] == 2304
    await edit(world, tuning=after)
    await world.pass_time(1000 if after is OPT_IN else 10)
    assert lengths(world) == [4096]


async def test_a_shortened_length_is_known_after_a_restart_of_the_operator(world):
    await world.make(engine=ENGINE, tuning=OPT_IN)
    await swap(world, 80)
    await world.look()
    world.start_operator()
    await world.settle()
    world.restart_engine(cap=4, routes=None)
    await world.pass_time(30)
    assert lengths(world) == [2304]


@pytest.mark.parametrize("while_away", [False, True], ids=["after the start", "while the operator was away"])
async def test_a_longer_spec_after_a_restart_of_the_operator_holds_at_once(world, while_away):
    await world.make(engine=ENGINE, tuning=OPT_IN)
    await world.pass_time(10)
    world.start_operator()
    if not while_away:
        await world.settle()
        await world.pass_time(10)
    await edit(world, engine={"maxModelLen": 8192})
    await world.settle()
    await world.pass_time(30)
    for raw in world.pods():
        start = RuntimeStart.model_validate_json(raw["metadata"]["annotations"][RUNTIME_CONFIG])
        assert start.max_model_len in (None, 8192)
    assert lengths(world)[-1] == 8192
    assert (await world.status())["tuning"]["maxModelLen"] == 8192
    assert await world.reasons() == []


async def test_a_pod_of_a_shorter_spec_still_gets_its_cap_while_it_is_replaced(world):
    await world.make(engine=ENGINE | {"maxNumSeqs": {"initial": 8, "min": 4, "max": 32}}, tuning=OPT_IN, replicas=2)
    await world.pass_time(10)
    await swap(world, 100)
    await world.pass_time(320)  # it is given back in steps
    await edit(world, engine={"maxModelLen": 8192}, tuning={"mode": "Auto", "maxModelLen": None})
    await world.look()
    assert max(lengths(world)) in (4096, 8192)
    assert world.fleets.views[KEY].unset == ()

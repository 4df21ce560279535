"""A person's reset of a route, and what becomes of one that is misspelt or asked for twice."""

import pytest

from tests.operator.control.test_loop import annotate, in_fallback
from tests.operator.control.world import World


@pytest.fixture
def world():
    return World()


async def test_the_same_text_counts_again_once_the_annotation_was_taken_off(world):
    await in_fallback(world)
    await annotate(world, "tools")
    await world.look()
    await annotate(world, None)
    await world.look()
    assert "precisionReset" not in await world.status()
    await annotate(world, "tools")
    await world.look()
    assert (await world.reasons()).count(("Precision", "Reset")) == 2


@pytest.mark.parametrize("text", ["tols", "", "t" * 300], ids=["misspelt", "empty", "too long for the status"])
async def test_a_reset_of_no_route_is_told_once(world, text):
    await in_fallback(world)
    await annotate(world, text)
    await world.pass_time(20)
    assert (await world.reasons()).count(("Hold", "UnknownRoute")) == 1
    raws = [raw for address, raw in world.cluster.objects.items() if address.plural == "events"]
    [note] = [raw for raw in raws if raw["reason"] == "UnknownRoute"]
    assert (note["type"], note["note"].split(": ")[-1]) == ("Warning", "use one of tools.")

"""What status shows of engines that nothing was decided about: what they have, not what the spec would start with."""

import pytest

from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY
from tests.operator.control.test_loop import cut_to_15
from tests.operator.control.world import World


@pytest.mark.parametrize("mode", ["Off", "Advisory"])
async def test_caps_that_nobody_tunes_are_shown_as_they_are(mode):
    world = World()
    await cut_to_15(world)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"tuning": {"mode": mode}}})
    await world.reconciler(KEY)
    await world.pass_time(30)
    (engine,) = world.engines.engines.values()
    assert engine.config.cap == 15
    assert (await world.status())["tuning"]["maxNumSeqs"] == 15

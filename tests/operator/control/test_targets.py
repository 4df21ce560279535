"""Which change gets an engine from its configuration to its target."""

import pytest

from pagefleet_engine.contract.control import RouteConfig, RuntimeChange, RuntimeConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.control.targets import Target, change_for

DEFAULT = RouteConfig(name="default", model="smollm2", precision=Precision.FP8_E4M3)
TOOLS = RouteConfig(name="tools", model="smollm2-tools", precision=Precision.FP8_E4M3)
IN_BF16 = TOOLS.model_copy(update={"precision": Precision.BF16})
CONFIG = RuntimeConfig(generation=7, cap=32, max_model_len=4096, max_num_batched_tokens=512, routes=(DEFAULT, TOOLS))

CASES = {
    "nothing is wanted": (Target(), None),
    "what is wanted is there": (Target(cap=32, max_model_len=4096, routes=(DEFAULT, TOOLS)), None),
    "only what differs is asked for": (
        Target(cap=24, max_model_len=4096, routes=(DEFAULT, TOOLS)),
        RuntimeChange(expected_generation=7, cap=24),
    ),
    "a route's precision": (
        Target(routes=(DEFAULT, IN_BF16)),
        RuntimeChange(expected_generation=7, routes=(DEFAULT, IN_BF16)),
    ),
    "everything at once": (
        Target(cap=8, max_model_len=1024, routes=(DEFAULT, IN_BF16)),
        RuntimeChange(expected_generation=7, cap=8, max_model_len=1024, routes=(DEFAULT, IN_BF16)),
    ),
    "an engine of an older revision keeps its routes, and gets its cap": (
        Target(cap=8, routes=(DEFAULT,)),
        RuntimeChange(expected_generation=7, cap=8),
    ),
}


@pytest.mark.parametrize(("target", "want"), CASES.values(), ids=CASES.keys())
def test_change_for(target, want):
    assert change_for(CONFIG, target) == want

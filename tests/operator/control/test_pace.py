"""When a service is looked at again: by the answers a second of its tested routes."""

import pytest

from pagefleet_operator.api.status import RouteState
from pagefleet_operator.control.pace import look_again_after
from pagefleet_operator.remedies.precision.memory import Memory
from pagefleet_operator.remedies.scrape import parse_metrics
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import EngineStart, open_window
from tests.operator.control.world import metrics_text

SETTINGS = LoopSettings()
START = EngineStart(uid="uid", restarts=0)


def window(answers, route="tools", seconds=5.0):
    """Two looks, between which a route got so many answers."""
    made = open_window(START, SETTINGS)
    for steps, at_s, number in ((1, 0.0, 0), (2, seconds, answers)):
        structured = [(route, "fp8_e4m3", "valid", number)]
        text = metrics_text(cap=32, capacity=64, length=512, steps=steps, structured=structured, running=1)
        made = made.looked(at_s, parse_metrics(text), START)
    return made


@pytest.mark.parametrize(
    ("state", "windows", "after_s"),
    [
        pytest.param(RouteState.NORMAL, [window(500)], None, id="no test runs"),
        pytest.param(RouteState.FALLBACK, [window(500)], None, id="no test runs in fallback"),
        pytest.param(RouteState.TESTING, [], None, id="no engine is measured"),
        pytest.param(RouteState.TESTING, [window(50)], None, id="the usual look holds few enough"),
        pytest.param(RouteState.TESTING, [window(500, route="chat")], None, id="another route is busy"),
        pytest.param(RouteState.TESTING, [window(100)], 2.5, id="20 a second"),
        pytest.param(RouteState.PROBING, [window(100)], 2.5, id="probing, too"),
        pytest.param(RouteState.TESTING, [window(100), window(25)], 2.0, id="engines add up"),
        pytest.param(RouteState.TESTING, [window(20, seconds=1.0)], 2.5, id="looks that are near already"),
        pytest.param(RouteState.TESTING, [window(1000)], 1.0, id="never sooner than the least"),
    ],
)
def test_when_to_look_again(state, windows, after_s):
    assert look_again_after({"tools": Memory(state=state)}, windows, SETTINGS) == after_s

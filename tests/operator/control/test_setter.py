"""Setting one engine: what is read, what is asked, and what becomes of a failure."""

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_engine.contract.control import RuntimeChange
from pagefleet_operator.control.setter import Reported, Setter
from pagefleet_operator.control.targets import Target
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.errors import EngineUnreachableError
from pagefleet_operator.fake_engines import FakeEngines
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.remedies.window import EngineStart

POD = EnginePod(name="smollm2-0", uid="uid-1", ip="10.0.0.1")
UNSEEN = Reported()
FIRST = EngineStart(uid="uid-1", restarts=0)
SECOND = EngineStart(uid="uid-1", restarts=1)


@pytest.fixture
def engines():
    made = FakeEngines()
    made.add("uid-1", cap=32, capacity=32)
    return made


@pytest.fixture
def setter(engines):
    return OneSetter(engines=engines, metrics=OperatorMetrics(CollectorRegistry()))


class OneSetter(Setter):
    """As the loop uses it, at the same moment unless a test says otherwise."""

    async def bring(self, pod, start, target, reported=UNSEEN, now_s=0.0):
        return await super().bring(pod, start, target, reported, now_s)


async def test_an_engine_is_read_once_and_asked_only_for_what_differs(setter, engines):
    for cap in (32, 24, 24, 20):
        assert await setter.bring(POD, FIRST, Target(cap=cap)) is None
    assert [call for call, _ in engines.calls] == ["read_config", "change_config", "change_config"]
    assert [change for _, change in engines.changes] == [
        RuntimeChange(expected_generation=1, cap=24),
        RuntimeChange(expected_generation=2, cap=20),
    ]


async def test_an_engine_that_was_restarted_is_read_again(setter, engines):
    await setter.bring(POD, FIRST, Target(cap=24))
    engines.add("uid-1", cap=32, capacity=32)
    await setter.bring(POD, SECOND, Target(cap=24))
    assert engines.engines["uid-1"].config.cap == 24


async def test_after_somebody_elses_change_it_is_read_and_set_at_the_next_look(setter, engines):
    await setter.bring(POD, FIRST, Target(cap=24))
    await engines.change_config(POD, RuntimeChange(expected_generation=2, cap=5))
    assert await setter.bring(POD, FIRST, Target(cap=20)) == "pod smollm2-0: the configuration is at 3"
    assert await setter.bring(POD, FIRST, Target(cap=20)) is None
    assert engines.engines["uid-1"].config.cap == 20


DRIFTS = {
    "another cap is reported": (Reported(cap=30, max_model_len=4096), 5.0),
    "another length is reported": (Reported(cap=24, max_model_len=512), 5.0),
    "a minute has passed": (Reported(cap=24, max_model_len=4096), 60.0),
}


@pytest.mark.parametrize(("reported", "now_s"), DRIFTS.values(), ids=DRIFTS.keys())
async def test_what_somebody_else_changed_is_set_again(setter, engines, reported, now_s):
    target = Target(cap=24, max_model_len=4096)
    await setter.bring(POD, FIRST, target)
    await engines.change_config(POD, RuntimeChange(expected_generation=2, cap=30, max_model_len=512))
    assert await setter.bring(POD, FIRST, target, reported, now_s) is None
    config = engines.engines["uid-1"].config
    assert (config.cap, config.max_model_len) == (24, 4096)
    assert setter.metrics.registry.get_sample_value("pagefleet_operator_engine_drifts_total") == 1


async def test_an_engine_that_reports_what_it_was_set_to_is_not_read_again(setter, engines):
    await setter.bring(POD, FIRST, Target(cap=24))
    engines.calls.clear()
    for now_s, reported in ((5.0, Reported(cap=24, max_model_len=4096)), (59.0, Reported())):
        await setter.bring(POD, FIRST, Target(cap=24), reported, now_s)
    assert engines.calls == []


async def test_what_an_engine_refuses_is_told(setter, engines):
    assert await setter.bring(POD, FIRST, Target(cap=64)) == "pod smollm2-0: cap: 64: must be 1 to 32"
    assert engines.changes == []


async def test_an_engine_that_does_not_answer_is_tried_again(setter, engines):
    engines.fail_next("change_config", "uid-1", EngineUnreachableError("pod smollm2-0: no answer"))
    assert await setter.bring(POD, FIRST, Target(cap=24)) == "pod smollm2-0: no answer"
    assert await setter.bring(POD, FIRST, Target(cap=24)) is None
    assert engines.engines["uid-1"].config.cap == 24


async def test_pods_that_are_gone_are_forgotten(setter, engines):
    await setter.bring(POD, FIRST, Target(cap=24))
    setter.keep_only(set())
    await setter.bring(POD, FIRST, Target(cap=24))
    assert [call for call, _ in engines.calls].count("read_config") == 2

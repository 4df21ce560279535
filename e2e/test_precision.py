"""The story of a route whose answers break in FP8 alone, with the operator killed while the route is in fallback."""

from __future__ import annotations

import pytest

from e2e import demo
from e2e.operator_pods import kill_operator
from e2e.stories import precision

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def told(kube, operator, built_images, namespace):
    image = built_images["engine-demo"]
    demo.install_operator(kube, built_images["operator"], pace=precision.PACE)
    precision.begin(kube, image, namespace, print)
    yield precision.tell(kube, image, namespace, print, at_the_height=lambda: kill_operator(kube))
    demo.install_operator(kube, built_images["operator"])


def test_the_same_prompts_fail_in_degraded_fp8_and_pass_in_bf16(told):
    failed, answers = told.failing["fp8_e4m3"]
    control_failed, controls = told.failing["bf16"]
    assert answers >= 20
    assert controls >= 10
    assert failed / answers > 2 * control_failed / controls


def test_the_route_was_compared_moved_and_came_back(told):
    decisions = [(decision["subject"], decision["reason"]) for decision in told.diary.decisions]
    expected = [
        (precision.ROUTE, "SchemaFailureRateAboveBound"),
        (precision.ROUTE, "DifferenceConfirmed"),
        (precision.ROUTE, "QuietPeriodOver"),
        (precision.ROUTE, "ProbeClean"),
    ]
    assert [decision for decision in decisions if decision in expected] == expected


def test_no_request_failed(told):
    for load in told.loads:
        assert (load.failed, load.cut, load.errors) == (0, 0, ())
        assert load.done > 0

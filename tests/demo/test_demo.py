"""The demo's pure parts: what it waits for, what it says, and what it refuses."""

from __future__ import annotations

import pytest

from e2e import demo
from e2e.watch import describe, is_ready


def service(*, generation=1, observed=1, ready="True"):
    conditions = [{"type": "Ready", "status": ready, "reason": "WaitingForPods", "message": "Not ready yet: a-0."}]
    return {
        "metadata": {"generation": generation},
        "status": {"observedGeneration": observed, "conditions": conditions},
    }


READY = {
    "ready, and the status is about the spec as it is": (service(), True),
    "ready, but the status is about an older spec": (service(generation=2), False),
    "not ready": (service(ready="False"), False),
    "never seen by the operator": ({"metadata": {"generation": 1}}, False),
}


@pytest.mark.parametrize(("found", "want"), READY.values(), ids=READY.keys())
def test_a_service_is_ready_when_its_current_spec_is(found, want):
    assert is_ready(found) is want


def test_what_it_waits_for_is_one_line():
    assert describe(service(ready="False")) == "WaitingForPods: Not ready yet: a-0."
    assert describe({"metadata": {}}) == "NoStatusYet: the operator has not seen it yet"


def test_the_example_gets_the_built_image_and_the_demos_namespace():
    found = demo.example_service("localhost/pagefleet/engine-demo:abc")
    assert found["spec"]["engine"]["image"] == "localhost/pagefleet/engine-demo:abc"
    assert found["metadata"] == {"name": "smollm2", "namespace": "default"}


REFUSED = {
    "a context without a registry": ("mine", None, "CONTEXT= needs REGISTRY= too"),
    "a registry without a context": (None, "registry.example", "REGISTRY= is for a cluster that CONTEXT= names"),
}


@pytest.mark.parametrize(("context", "registry", "want"), REFUSED.values(), ids=REFUSED.keys())
def test_half_a_target_is_refused_before_anything_is_done(context, registry, want):
    with pytest.raises(demo.DemoError, match=want):
        demo.up(context, registry)


def test_the_way_to_stop_names_the_context():
    assert demo.next_steps("a", "hint", None).endswith("make demo-down")
    assert demo.next_steps("a", "hint", "mine").endswith("make demo-down CONTEXT=mine")

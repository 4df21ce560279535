"""Fields without behaviour are refused with their path and the remedy; the defaults are inert."""

from __future__ import annotations

import pytest

from e2e.invalid_specs import VALID
from pagefleet_operator.api.fields import leaves
from pagefleet_operator.api.unbuilt import UNBUILT, unbuilt_fields
from pagefleet_operator.api.validation import validate

MODEL, ENGINE = VALID["spec"]["model"], VALID["spec"]["engine"]
ROUTE = {"name": "tools", "model": "tiny-tools"}
MOVING = "moving a route's precision is not built yet"


def route(**changes):
    return {"routes": [{"name": "first", "model": "tiny-first"}, ROUTE | changes]}


def precision(**changes):
    return route(structured="Off", kvPrecision=changes)


CASES = {
    "a hub": (
        {"model": MODEL | {"uri": "hf://owner/name"}},
        ["spec.model.uri: fetching models from a hub or registry is not built yet: use a file:// or pvc:// URI"],
    ),
    "an FP8 cache": (
        {"engine": ENGINE | {"kvCache": {"precision": "fp8_e4m3"}}},
        ["spec.engine.kvCache.precision: keeping sealed frames in another precision is not built yet: set it to bf16"],
    ),
    "swap space": (
        {"engine": ENGINE | {"kvCache": {"swapSpace": "4Gi"}}},
        ['spec.engine.kvCache.swapSpace: swapping frames to host memory is not built yet: set it to "0"'],
    ),
    "two devices": (
        {"engine": ENGINE | {"tensorParallelSize": 2}},
        ["spec.engine.tensorParallelSize: sharing a model between devices is not built yet: set it to 1"],
    ),
    "autoscaling": (
        {"autoscaling": {"maxReplicas": 3}},
        ["spec.autoscaling: choosing the number of replicas is not built yet: remove it"],
    ),
    "tuning": (
        {"tuning": {"mode": "Advisory"}},
        ["spec.tuning.mode: moving the running cap is not built yet: set it to Off"],
    ),
    "a length floor": (
        {"tuning": {"maxModelLen": {"min": 256}}},
        ["spec.tuning.maxModelLen: lowering the length of new requests is not built yet: remove it"],
    ),
    "counted answers, on the second route": (
        route(structured="Validate"),
        ["spec.routes[1].structured: checking answers against their schema is not built yet: set it to Off"],
    ),
    "a precision policy": (
        route(structured="Validate", kvPrecision={"policy": "Auto"}),
        [
            "spec.routes[1].structured: checking answers against their schema is not built yet: set it to Off",
            f"spec.routes[1].kvPrecision.policy: {MOVING}: set it to Off",
        ],
    ),
    "a control share": (
        precision(controlShare="0.05"),
        ['spec.routes[1].kvPrecision.controlShare: a control share is not built yet: set it to "0"'],
    ),
    "demotion": (
        precision(allowDemotion=True),
        ["spec.routes[1].kvPrecision.allowDemotion: demoting frames under pressure is not built yet: set it to false"],
    ),
    "a precision by length": (
        precision(fp8MaxContext=1024),
        ["spec.routes[1].kvPrecision.fp8MaxContext: choosing a precision by length is not built yet: remove it"],
    ),
    "another window": (
        precision(windowRequests=400),
        [f"spec.routes[1].kvPrecision.windowRequests: {MOVING}: set it to 500"],
    ),
    "API keys": (
        {"apiKeys": {"secretName": "keys"}},
        ["spec.apiKeys: checking API keys is not built yet: remove it"],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES.keys())
def test_what_is_not_built_is_refused(changes, expected):
    assert [str(problem) for problem in unbuilt_fields(validate(VALID["spec"] | changes))] == expected


INERT = {
    "the defaults": {},
    "a route that is an alias": route(),
    "a volume": {"model": MODEL | {"uri": "pvc://models/smollm2"}},
    "no swap space as a number": {"engine": ENGINE | {"kvCache": {"swapSpace": 0}}},
    "a share of nothing": precision(controlShare="0.0"),
}


@pytest.mark.parametrize("changes", INERT.values(), ids=INERT.keys())
def test_inert_values_are_accepted(changes):
    assert unbuilt_fields(validate(VALID["spec"] | changes)) == []


def test_every_row_names_a_field():
    known = [leaf.path for leaf in leaves("spec")]
    for row in UNBUILT:
        assert any(path == f"spec.{row.path}" or path.startswith(f"spec.{row.path}.") for path in known), row.path

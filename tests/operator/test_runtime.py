"""What engines start with and are set to: routes and the annotation, from a spec and what was decided."""

from __future__ import annotations

import json

import pytest

from pagefleet_engine.contract.control import RouteConfig, RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.runtime import RouteOverride, route_configs, runtime_annotation, runtime_start
from pagefleet_operator.testing import llm_service

DEFAULT = RouteConfig(name="default", model="smollm2", precision=Precision.FP8_E4M3)
TOOLS = RouteConfig(name="tools", model="smollm2-tools", precision=Precision.FP8_E4M3)


def spec_of(route=None, **engine):
    routes = [{"name": "tools", "model": "smollm2-tools"} | (route or {})]
    image = {"image": "registry.example/engine:1"}
    return LLMServiceSpec.model_validate(llm_service(routes=routes, engine=image | engine)["spec"])


# sentence → (route in the spec, what the engine is told)
ROUTES = {
    "an alias asks for nothing": ({}, {}),
    "answers that are checked are compared with a share in the fallback precision": (
        {"structured": "Validate"},
        {"structured": "validate", "control_share": 0.05},
    ),
    "no share without a policy": (
        {"structured": "Validate", "kvPrecision": {"policy": "Off"}},
        {"structured": "validate"},
    ),
    "a share of its own": (
        {"structured": "Validate", "kvPrecision": {"policy": "Advisory", "controlShare": "0.2"}},
        {"structured": "validate", "control_share": 0.2},
    ),
    "every field": (
        {"kvPrecision": {"fallback": "int8", "allowDemotion": True, "fp8MaxContext": 1024}},
        {"control_precision": Precision.INT8, "allow_demotion": True, "max_context": 1024},
    ),
}


@pytest.mark.parametrize(("route", "want"), ROUTES.values(), ids=ROUTES.keys())
def test_routes(route, want):
    assert route_configs(spec_of(route)) == (DEFAULT, TOOLS.model_copy(update=want))


def test_what_was_decided_goes_before_the_spec():
    spec = spec_of({"structured": "Validate"})
    decided = {"tools": RouteOverride(precision=Precision.BF16, control_share=0.5), "gone": RouteOverride()}
    want = {"structured": "validate", "precision": Precision.BF16, "control_share": 0.5}
    assert route_configs(spec, decided) == (DEFAULT, TOOLS.model_copy(update=want))
    none = {"tools": RouteOverride(control_share=0.0)}
    assert route_configs(spec, none)[1].control_share == 0.0


# sentence → (cap, length, cap and length of the start)
STARTS = {
    "nothing was decided": (None, None, (None, None)),
    "what was decided": (4, 512, (4, 512)),
    "a cap above the capacity is cut": (64, None, (16, None)),
    "a cap below the least is raised": (1, None, (2, None)),
    "a length above the spec's is cut": (None, 4096, (None, 1024)),
}


@pytest.mark.parametrize(("cap", "length", "want"), STARTS.values(), ids=STARTS.keys())
def test_a_start(cap, length, want):
    spec = spec_of(maxNumSeqs={"min": 2, "max": 16}, maxModelLen=1024)
    start = runtime_start(spec, cap=cap, max_model_len=length)
    assert (start.cap, start.max_model_len) == want
    assert start.routes == (DEFAULT, TOOLS)


def test_the_annotation_is_what_the_engine_reads():
    start = runtime_start(spec_of({"structured": "Validate"}), cap=4)
    text = runtime_annotation(start)
    assert RuntimeStart.model_validate_json(text) == start
    assert json.loads(text)["cap"] == 4
    assert "max_model_len" not in json.loads(text)

"""The API server and the types fill in the same defaults, so that a stored object and a parsed one say the same."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from e2e.invalid_specs import VALID
from pagefleet_operator.api.crd import object_schema
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.api.validation import validate

SPEC = object_schema()["properties"]["spec"]


def with_defaults(value, schema):
    """Defaulting as the API server does it: from the outside in, so that `{}` fills with what is inside."""
    if "properties" in schema and isinstance(value, dict):
        value = dict(value)
        for name, field in schema["properties"].items():
            if name not in value and "default" in field:
                value[name] = copy.deepcopy(field["default"])
            if name in value:
                value[name] = with_defaults(value[name], field)
    if "items" in schema and isinstance(value, list):
        value = [with_defaults(item, schema["items"]) for item in value]
    return value


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 256),
        "tuning": st.just({}) | st.just({"mode": "Auto"}),
        "rollout": st.just({}) | st.just({"maxSurge": 2}),
        "drain": st.just({}),
        "paused": st.booleans(),
        "routes": st.just([]) | st.just([{"name": "a", "model": "b"}, {"name": "c", "model": "d", "kvPrecision": {}}]),
        "pod": st.just({}) | st.just({"resources": {}, "tolerations": [{"operator": "Exists"}]}),
    },
)


@given(PARTS)
def test_defaulting_changes_nothing_that_the_types_see(parts):
    raw = copy.deepcopy(VALID["spec"]) | parts
    parsed = validate(raw)
    assert isinstance(parsed, LLMServiceSpec)
    assert validate(with_defaults(raw, SPEC)) == parsed


@given(PARTS)
def test_defaulting_twice_is_defaulting_once(parts):
    once = with_defaults(copy.deepcopy(VALID["spec"]) | parts, SPEC)
    assert with_defaults(once, SPEC) == once


def test_a_minimal_spec_is_stored_with_every_default():
    stored = with_defaults(VALID["spec"], SPEC)
    assert stored == VALID["spec"] | {
        "engine": VALID["spec"]["engine"]
        | {
            "maxNumSeqs": {"min": 1, "max": 32},
            "kvCache": {"precision": "fp8_e4m3", "memoryUtilization": "0.90", "swapSpace": "4Gi", "blockSize": 16},
            "tensorParallelSize": 1,
        },
        "tuning": {"mode": "Auto"},
        "drain": {"timeout": "5m"},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
        "pod": {"resources": {}},
        "paused": False,
    }

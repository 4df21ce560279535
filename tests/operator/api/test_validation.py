"""What the operator says of a spec: the table of invalid ones, and that every rule has a row in it."""

from __future__ import annotations

import pytest

from e2e.invalid_specs import CASES, VALID
from pagefleet_operator.api.base import VALIDATIONS
from pagefleet_operator.api.crd import object_schema
from pagefleet_operator.api.problems import FieldProblem
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.api.validation import MAX_PROBLEMS, validate

LOOKED_AT = {sentence: case for sentence, case in CASES.items() if case.problem is not None}


@pytest.mark.parametrize("case", LOOKED_AT.values(), ids=LOOKED_AT.keys())
def test_an_invalid_spec_is_one_sentence(case):
    assert [str(problem) for problem in validate(case.manifest()["spec"])] == [case.problem]


def test_the_base_of_the_table_is_valid():
    assert isinstance(validate(VALID["spec"]), LLMServiceSpec)


def rules_of_objects(schema):
    """Messages of rules over several fields; formats of single values are shared by many fields."""
    if schema.get("type") == "object":
        yield from (rule["message"] for rule in schema.get(VALIDATIONS, ()))
    nested = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for part in nested:
        yield from rules_of_objects(part)


def test_every_rule_over_several_fields_has_a_row():
    shown = " ".join(case.line for case in CASES.values())
    assert [message for message in rules_of_objects(object_schema()) if message not in shown] == []


def test_several_problems_are_told_at_once():
    spec = {"model": {"uri": "x", "name": "a"}, "engine": {}, "rollout": {"maxUnavailable": 0}}
    assert [problem.path for problem in validate(spec)] == ["spec.model.uri", "spec.engine.image", "spec.rollout"]


def test_the_number_of_problems_is_bounded():
    spec = VALID["spec"] | {f"unknown{number}": 1 for number in range(50)}
    assert len(validate(spec)) == MAX_PROBLEMS


def test_an_absent_spec_names_what_is_required():
    assert validate(None) == [
        FieldProblem(path="spec.model", message="is required: add it"),
        FieldProblem(path="spec.engine", message="is required: add it"),
    ]


@pytest.mark.parametrize("spec", [{"model": 3, "engine": []}, {"model": None}, {"routes": {"a": 1}}])
def test_shapes_of_any_kind_are_answered(spec):
    assert all(isinstance(problem, FieldProblem) for problem in validate(spec))


def test_a_name_in_another_case_is_no_field():
    spec = VALID["spec"] | {"api_keys": {"secretName": "s"}}
    expected = "spec.api_keys: is no field of this resource: remove it or correct its spelling"
    assert [str(problem) for problem in validate(spec)] == [expected]


def test_a_whole_number_is_a_quantity():
    spec = VALID["spec"] | {"pod": {"resources": {"limits": {"cpu": 2, "memory": "4Gi"}}}}
    assert validate(spec).pod.resources.limits == {"cpu": "2", "memory": "4Gi"}

"""Judging finished texts: exact outcomes, and bounded work whatever schema and text are."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.verdicts import QUICK, SchemaCheck, Undecided, parse_json

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}

JUDGED = {
    "what fits": (PERSON, '{"name": "Ada", "age": 36}', "valid"),
    "white space around it": (PERSON, ' \n{"name": "Ada"}\n', "valid"),
    "a missing property": (PERSON, '{"age": 36}', "schema_violation"),
    "a wrong type": (PERSON, '{"name": "Ada", "age": "36"}', "schema_violation"),
    "a property too many": (PERSON, '{"name": "Ada", "born": 1815}', "schema_violation"),
    "prose": (PERSON, "Ada is 36.", "invalid_json"),
    "prose before it": (PERSON, 'Sure! {"name": "Ada"}', "invalid_json"),
    "half of it": (PERSON, '{"name": "Ad', "invalid_json"),
    "nothing": (PERSON, "", "invalid_json"),
    "a number that is none": ({"type": "number"}, "NaN", "invalid_json"),
    "a number of 10,000 digits": ({"type": "number"}, "1" * 10_000, "invalid_json"),
    "100,000 open brackets": ({}, "[" * 100_000, "invalid_json"),
    "nested lists": ({"items": {"$ref": "#"}}, "[" * 30 + "]" * 30, "valid"),
    "a pattern": ({"pattern": "^a+$"}, '"aaa"', "valid"),
    "a pattern anywhere": ({"pattern": "b"}, '"abc"', "valid"),
    "not the pattern": ({"pattern": "^a+$"}, '"aab"', "schema_violation"),
    "a format": ({"format": "date"}, '"1815-12-10"', "valid"),
    "not the format": ({"format": "date"}, '"1815-13-10"', "schema_violation"),
    "a format that nobody knows is not checked": ({"format": "colour"}, '"red"', "valid"),
    "a pattern that Python's re cannot read": ({"pattern": "a{99999999999999999999}"}, '"a"', "valid"),
    "a pattern that no automaton can match is not checked": ({"pattern": "(?=a)b"}, '"c"', "valid"),
    "properties by pattern": ({"patternProperties": {"^n_": {"type": "integer"}}}, '{"n_a": 1}', "valid"),
    "wrong properties by pattern": (
        {"patternProperties": {"^n_": {"type": "integer"}}},
        '{"n_a": ""}',
        "schema_violation",
    ),
    "neither by name nor by pattern": (
        {"patternProperties": {"^n_": {}}, "properties": {"m": {}}, "additionalProperties": {"type": "null"}},
        '{"n_a": 1, "m": 1, "x": 1}',
        "schema_violation",
    ),
    "an item twice": ({"uniqueItems": True}, '[{"a": 1}, {"a": 1}]', "schema_violation"),
    "no item twice": ({"uniqueItems": True}, '[{"a": 1}, {"a": 2}]', "valid"),
    "a multiple of a number too small": ({"multipleOf": 1e-300}, "1e300", "schema_violation"),
    "half a surrogate pair": ({"pattern": "a"}, '"\\ud800"', "invalid_json"),
    "half a surrogate pair as a key": ({}, '{"\\udc00": 1}', "invalid_json"),
    "a whole surrogate pair": ({"maxLength": 1}, '"\\ud83d\\ude00"', "valid"),
}


@pytest.mark.parametrize(("schema", "text", "outcome"), JUDGED.values(), ids=JUDGED.keys())
def test_outcomes(schema, text, outcome):
    assert SchemaCheck(schema).judge(text) == Outcome(outcome)


def blow_up(keyword: str) -> dict:
    """Thirty definitions, each of which refers to the next one twice."""
    definitions = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(30)}
    return {"$defs": definitions | {"a30": {"type": "null"}}, "$ref": "#/$defs/a0"}


UNDECIDED = {
    "a billion evaluations by allOf": (blow_up("allOf"), "null"),
    "a billion evaluations by anyOf": (blow_up("anyOf"), "1"),
    "a schema that refers to itself": ({"$ref": "#"}, "1"),
    "lists deeper than the interpreter follows": ({"items": {"$ref": "#"}}, "[" * 900 + "]" * 900),
    "a reference that leads nowhere": ({"properties": {"a": {"$ref": "#/$defs/b"}}}, '{"a": 1}'),
    "or to itself among others": ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "1"),
}


@pytest.mark.parametrize(("schema", "text"), UNDECIDED.values(), ids=UNDECIDED.keys())
def test_what_cannot_be_decided_is_given_up(schema, text):
    with pytest.raises(Undecided):
        SchemaCheck(schema).judge(text, allowance=QUICK)


def test_cve_2026_55574_a_pattern_that_takes_re_for_ever():
    check = SchemaCheck({"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False})
    assert check.judge(json.dumps({"a" * 2_000 + "b": 1})) is Outcome.SCHEMA_VIOLATION
    assert SchemaCheck({"pattern": "^(a|a)*$"}).judge(json.dumps("a" * 2_000 + "b")) is Outcome.SCHEMA_VIOLATION


NO_SCHEMAS = {
    "a type that is none": ({"type": "strin"}, "$.type"),
    "a type in a list": ({"type": ["string", 5]}, "$.type"),
    "properties in a list": ({"properties": []}, "$.properties"),
    "draft 3": ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$.$schema"),
    "deep inside": ({"properties": {"a": {"minLength": -1}}}, "$.properties.a.minLength"),
}


@pytest.mark.parametrize(("schema", "path"), NO_SCHEMAS.values(), ids=NO_SCHEMAS.keys())
def test_what_is_no_schema_is_refused_with_the_place(schema, path):
    with pytest.raises(RequestRefused) as refusal:
        SchemaCheck(schema)
    assert str(refusal.value).startswith(f"{path}: ")


LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "string"},
        {"enum": [1, "a", None]},
        {"const": True},
        {"minimum": 2},
        {"maxLength": 1},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
        st.builds(lambda a: {"properties": {"a": {}}, "additionalProperties": a}, inner),
        st.builds(lambda a: {"type": "array", "items": a, "uniqueItems": True}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a: {"not": a}, inner),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 3, "", "a", "ab"]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, VALUES)
def test_verdicts_are_those_of_the_library(schema, value):
    assert SchemaCheck(schema).fits(value) is jsonschema.Draft202012Validator(schema).is_valid(value)


@given(VALUES)
def test_every_json_value_is_read_back(value):
    assert parse_json(json.dumps(value)) == value

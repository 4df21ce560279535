"""The chart's values: every one commented, used and described by a closed schema. Needs no Helm."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "pagefleet"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
META = yaml.safe_load((CHART / "Chart.yaml").read_text())

# Maps whose keys people choose, and Helm's own `global`.
OPEN = {"/global", "/affinity/nodeAffinity", "/affinity/podAffinity", "/affinity/podAntiAffinity"}


def objects(schema, path=""):
    if schema.get("type") == "object":
        yield path, schema
    for name, nested in schema.get("properties", {}).items():
        yield from objects(nested, f"{path}/{name}")
    if "items" in schema:
        yield from objects(schema["items"], f"{path}[]")


def test_the_schema_is_one():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_schema_is_closed():
    found = [path for path, schema in objects(SCHEMA) if schema.get("additionalProperties") is not False]
    assert set(found) == OPEN


def test_the_defaults_are_valid():
    jsonschema.validate(VALUES, SCHEMA)


def test_the_schema_and_the_values_have_the_same_keys():
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    for name, schema in SCHEMA["properties"].items():
        if schema.get("additionalProperties") is False and VALUES[name]:
            assert set(schema["properties"]) == set(VALUES[name]), name


REFUSED = {
    "a misspelt key": ({"image": {"repo": "x"}}, "Additional properties are not allowed ('repo' was unexpected)"),
    "an unknown key": ({"replicas": 2}, "Additional properties are not allowed ('replicas' was unexpected)"),
    "the tag latest": ({"image": {"tag": "latest"}}, "'latest' should not be valid under {'const': 'latest'}"),
    "a tag in the repository": ({"image": {"repository": "r.example/p:1"}}, "does not match"),
    "a digest of another kind": ({"image": {"digest": "md5:1"}}, "does not match"),
    "a pull policy that is none": ({"image": {"pullPolicy": "Sometimes"}}, "is not one of"),
    "a namespace that is none": ({"watchNamespaces": ["Team A"]}, "does not match"),
    "a namespace twice": ({"watchNamespaces": ["a", "a"]}, "has non-unique elements"),
    "a switch as text": ({"crds": {"keep": "yes"}}, "'yes' is not of type 'boolean'"),
    "a label that is a number": ({"podLabels": {"a": 1}}, "1 is not of type 'string'"),
}


def merged(base, changes):
    result = copy.deepcopy(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if nested else value
    return result


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_values_are_refused(changes, message):
    with pytest.raises(jsonschema.ValidationError, match=re.escape(message)):
        jsonschema.validate(merged(VALUES, changes), SCHEMA)


def test_every_paragraph_of_values_has_a_comment():
    paragraphs = (CHART / "values.yaml").read_text().strip().split("\n\n")
    assert [text for text in paragraphs if "#" not in text] == []


def test_templates_use_every_value_and_no_other():
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    used = set(re.findall(r"\.Values\.([A-Za-z]+)", text))
    assert used == set(VALUES)


def test_the_chart_has_the_version_of_the_distribution():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (META["version"], META["appVersion"]) == (version, version)

"""The CRD: structural, bounded everywhere, with the defaults of the types; the conversion and its refusals."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from pagefleet_operator.api import crd
from pagefleet_operator.api.base import VALIDATIONS
from pagefleet_operator.api.conditions import ConditionType
from pagefleet_operator.api.fields import leaves

PATH_STEP = re.compile(r"\.([A-Za-z]+)")


def schemas(schema, path=""):
    """Every schema with its path."""
    yield path, schema
    for name, nested in schema.get("properties", {}).items():
        yield from schemas(nested, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from schemas(schema[key], f"{path}[]")


ALL = {path: schema for path, schema in schemas(crd.object_schema()) if path.startswith((".spec", ".status"))}


def where(condition):
    return [path for path, schema in ALL.items() if condition(schema)]


def test_every_value_has_one_type():
    assert where(lambda schema: ("type" in schema) == ("x-kubernetes-int-or-string" in schema)) == []


def test_every_text_is_bounded():
    def unbounded(schema):
        is_text = schema.get("type") == "string" or "x-kubernetes-int-or-string" in schema
        return is_text and not {"maxLength", "enum", "format"} & set(schema)

    assert where(unbounded) == []


def test_every_list_and_map_is_bounded():
    assert where(lambda schema: schema.get("type") == "array" and "maxItems" not in schema) == []
    assert where(lambda schema: "additionalProperties" in schema and "maxProperties" not in schema) == []


def test_every_number_of_the_spec_is_bounded():
    loose = where(lambda schema: schema.get("type") == "integer" and not {"minimum", "maximum"} <= set(schema))
    assert [path for path in loose if path.startswith(".spec") and "enum" not in ALL[path]] == []


def test_everything_is_described():
    assert [path for path in where(lambda schema: "description" not in schema) if not path.endswith("[]")] == []


def test_nothing_is_left_of_what_a_structural_schema_lacks():
    foreign = {"$ref", "title", "anyOf", "oneOf", "allOf", "const", "propertyNames", "exclusiveMinimum", "prefixItems"}
    assert where(lambda schema: bool(foreign & set(schema))) == []


def test_rules_are_sentences_that_fit_an_error_message():
    for path, schema in ALL.items():
        for rule in schema.get(VALIDATIONS, ()):
            assert 10 < len(rule["message"]) <= 200, path
            assert "\n" not in rule["message"], path


def test_rules_point_at_fields_that_exist():
    for path, schema in ALL.items():
        for rule in schema.get(VALIDATIONS, ()):
            target = schema
            for step in PATH_STEP.findall(rule.get("fieldPath", "")):
                assert step in target["properties"], (path, rule)
                target = target["properties"][step]


def test_replicas_has_no_default():
    assert "default" not in ALL[".spec.replicas"]


def test_scale_has_all_three_paths():
    (version,) = crd.manifest()["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert {".spec.replicas", ".status.replicas", ".status.selector"} <= set(ALL)


def test_columns():
    (version,) = crd.manifest()["spec"]["versions"]
    shown = [column["name"] for column in version["additionalPrinterColumns"] if column["priority"] == 0]
    assert shown == ["Ready", "Replicas", "MaxSeqs", "KV", "Reason", "Age"]


@pytest.mark.parametrize("column", crd.COLUMNS, ids=lambda column: column[0])
def test_columns_show_fields_that_exist(column):
    path = column[2].split("[?")[0]
    assert path in ALL or path == ".metadata.creationTimestamp"


def test_the_condition_list_has_room_for_every_type():
    assert ALL[".status.conditions"]["maxItems"] >= len(ConditionType)


def test_the_manifest_stays_small():
    # An apply keeps a second copy in an annotation of at most 256 KiB.
    assert len(str(crd.manifest())) < 100_000


def test_leaves_are_fields_without_fields():
    paths = [leaf.path for leaf in leaves("spec")]
    assert paths[:3] == ["spec.model.uri", "spec.model.name", "spec.engine.image"]
    assert "spec.pod.env[].valueFrom.secretKeyRef.name" in paths
    assert "spec.pod.resources.limits" in paths
    assert "spec.pod" not in paths


class Inner(BaseModel):
    """Inside."""

    number: int = 3


class Outer(BaseModel):
    inner: Inner = Inner()
    maybe: str | None = None
    many: tuple[int, ...] = ()


def test_the_conversion_of_references_options_and_defaults():
    assert crd.structural_schema(Outer.model_json_schema()) == {
        "type": "object",
        "properties": {
            "inner": {
                "description": "Inside.",
                "type": "object",
                "default": {"number": 3},
                "properties": {"number": {"type": "integer", "default": 3}},
            },
            "maybe": {"type": "string"},
            "many": {"type": "array", "items": {"type": "integer"}},
        },
    }


class Either(BaseModel):
    value: int | str


class EitherOrNothing(BaseModel):
    value: int | str | None = None


@pytest.mark.parametrize("model", [Either, EitherOrNothing])
def test_unions_are_refused(model):
    with pytest.raises(TypeError, match="no unions"):
        crd.structural_schema(model.model_json_schema())

"""From the types to the CustomResourceDefinition.

pydantic's JSON schema becomes a structural one: references are inlined, titles and closed-object markers go (the API
server prunes or refuses unknown fields itself), `T | None` becomes T without a default, and empty lists and maps get
none, since absent means the same. The default of a nested object holds all nested defaults, because the API server
checks rules on the default as it is written. A real union is refused: structural schemas have none.
"""

from __future__ import annotations

from typing import Any, Final

from pagefleet_operator.api import v1alpha1
from pagefleet_operator.api.base import VALIDATIONS

Schema = dict[str, Any]

NAME: Final = f"{v1alpha1.PLURAL}.{v1alpha1.GROUP}"

COLUMNS: Final = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0, "Whether all is well"),
    ("Replicas", "string", ".status.replicasSummary", 0, "Serving and wanted pods"),
    ("MaxSeqs", "integer", ".status.tuning.maxNumSeqs", 0, "The engines' running cap"),
    ("KV", "string", ".status.kvCache.precision", 0, "The precision of sealed KV frames"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0, "Why it is ready or not"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Since when it exists"),
    ("Model", "string", ".spec.model.name", 1, "The model's name in the API"),
    ("Queue", "integer", ".status.load.waiting", 1, "Waiting requests"),
    ("KV%", "string", ".status.kvCache.usage", 1, "Mean share of KV frames in use"),
    ("URL", "string", ".status.url", 1, "Where the API is reached inside the cluster"),
)
"""Name, type, JSON path, priority (1 shows with `-o wide`), description."""

_ORDER: Final = ("description", "type", "enum", "format", "default")
"""What comes first when a schema is written; the rest follows by name, the nested schemas last."""
_NESTED: Final = ("items", "additionalProperties", "properties", "required", VALIDATIONS)
_DROPPED: Final = ("title", "$defs", "additionalProperties", "propertyNames", "minProperties")


def manifest() -> Schema:
    """The CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": v1alpha1.GROUP,
            "names": {
                "kind": v1alpha1.KIND,
                "listKind": f"{v1alpha1.KIND}List",
                "plural": v1alpha1.PLURAL,
                "singular": v1alpha1.SINGULAR,
                "shortNames": [v1alpha1.SHORT_NAME],
                "categories": list(v1alpha1.CATEGORIES),
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def object_schema() -> Schema:
    """The structural schema of a whole LLMService."""
    schema = structural_schema(v1alpha1.LLMService.model_json_schema(by_alias=True, mode="validation"))
    head = {
        "apiVersion": {"type": "string", "description": f"Always {v1alpha1.API_VERSION}."},
        "kind": {"type": "string", "description": f"Always {v1alpha1.KIND}."},
        # Of metadata a schema may name only this; the rule needs it to point at.
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    return schema | {"properties": head | schema["properties"], VALIDATIONS: [v1alpha1.LLMService.NAME_RULE]}


def structural_schema(schema: Schema) -> Schema:
    """Convert a whole pydantic schema. Raises `TypeError` for what a structural schema cannot say."""
    return _convert(schema, schema.get("$defs", {}))


def _version() -> Schema:
    return {
        "name": v1alpha1.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
            for name, kind, path, priority, description in COLUMNS
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": object_schema()},
    }


def _convert(schema: Schema, definitions: Schema) -> Schema:
    schema = _resolve(schema, definitions)
    if "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
        raise TypeError(f"a structural schema has no unions: {schema}")
    result = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "properties" in schema:
        result["properties"] = {name: _convert(field, definitions) for name, field in schema["properties"].items()}
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(schema["additionalProperties"], definitions)
    if "items" in schema:
        result["items"] = _convert(schema["items"], definitions)
    return _ordered(_with_default(result))


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """Follow references and optional types; what stands beside a reference wins over what it names."""
    while True:
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            schema = definitions[name] | {key: value for key, value in schema.items() if key != "$ref"}
        elif {"type": "null"} in schema.get("anyOf", ()):
            options = [option for option in schema["anyOf"] if option != {"type": "null"}]
            if len(options) != 1:
                raise TypeError(f"a structural schema has no unions: {schema}")
            schema = options[0] | {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        else:
            return schema


def _with_default(schema: Schema) -> Schema:
    default = schema.get("default")
    if default is None or (default in ([], {}) and "properties" not in schema):
        return {key: value for key, value in schema.items() if key != "default"}
    if "properties" in schema:
        fields = schema["properties"].items()
        return schema | {"default": {name: field["default"] for name, field in fields if "default" in field}}
    return schema


def _ordered(schema: Schema) -> Schema:
    between = sorted(key for key in schema if key not in _ORDER and key not in _NESTED)
    return {key: schema[key] for key in (*_ORDER, *between, *_NESTED) if key in schema}

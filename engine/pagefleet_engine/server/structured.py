"""What a request says its answers must look like: OpenAI's `response_format` and vLLM's fields for the same.

Pure. Every function raises `ApiError` with the field and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagefleet_engine.server.errors import invalid, unsupported
from pagefleet_engine.server.json_texts import JsonTexts
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schema_rules import check_nesting, check_regex, check_schema_rules
from pagefleet_engine.server.schemas import GenerationBody
from pagefleet_engine.structured.spec import ANY_OBJECT, Json, Kind, Spec, choice_spec, schema_spec

_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_KINDS: Final = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The form of an answer."""

    param: str
    """The field that asked for it."""
    spec: Spec
    schema: Json | None = None
    """None for what is no JSON: that is held to, and not judged."""


def check_wanted(body: GenerationBody, limits: Limits) -> Wanted | None:
    """What the request asks for; None when the answer is free. At most one field may ask."""
    found = {
        "response_format": _response_format(body.response_format, limits),
        "structured_outputs": check_structured_outputs(body.structured_outputs, limits),
    }
    for name, kind in _GUIDED.items():
        value = getattr(body, name)
        found[name] = None if value is None else _of_kind(kind, value, limits, param=name)
    asked = [wanted for wanted in found.values() if wanted is not None]
    if len(asked) > 1:
        raise invalid(f"{asked[1].param}: not together with {asked[0].param}", param=asked[1].param)
    return asked[0] if asked else None


def _response_format(value: Any, limits: Limits) -> Wanted | None:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return _of_schema(ANY_OBJECT, param="response_format")
    if kind != "json_schema":
        message = 'response_format: must be like {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
        raise invalid(message, param="response_format")
    param = "response_format.json_schema"
    inner = value.get("json_schema")
    if not isinstance(inner, dict):
        raise invalid(f"{param}: must be an object with name and schema", param=param)
    return _of_schema(check_schema_rules(inner.get("schema"), limits, param=f"{param}.schema"), param=f"{param}.schema")


def check_structured_outputs(value: Any, limits: Limits) -> Wanted | None:
    """vLLM's field of that name; None asks for nothing."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise invalid(
            f"structured_outputs: must be an object with one of {', '.join(_KINDS)}", param="structured_outputs"
        )
    given = {name: inner for name, inner in value.items() if inner is not None and inner is not False}
    other = next((name for name in given if name not in _KINDS), None)
    if other is not None:
        raise unsupported(f"structured_outputs.{other[:80]}")
    if len(given) != 1:
        raise invalid(f"structured_outputs: exactly one of {', '.join(_KINDS)}", param="structured_outputs")
    [(kind, inner)] = given.items()
    return _of_kind(kind, inner, limits, param=f"structured_outputs.{kind}")


def _of_kind(kind: str, value: Any, limits: Limits, *, param: str) -> Wanted:
    if kind == "json_object":
        return _of_schema(ANY_OBJECT, param=param)
    if kind == "json":
        return _of_schema(check_schema_rules(_parsed(value, limits, param), limits, param=param), param=param)
    if kind == "choice":
        return Wanted(param=param, spec=choice_spec(_check_choices(value, limits, param)))
    if not isinstance(value, str):
        raise invalid(f"{param}: must be a string", param=param)
    if kind == "regex":
        return Wanted(param=param, spec=Spec(kind=Kind.REGEX, text=check_regex(value, limits, param=param)))
    if len(value) > limits.schema_bytes:
        raise invalid(f"{param}: has {len(value)} characters; at most {limits.schema_bytes} are served", param=param)
    check_nesting(value, param=param)
    return Wanted(param=param, spec=Spec(kind=Kind.GRAMMAR, text=value))


def _of_schema(schema: Json, *, param: str) -> Wanted:
    return Wanted(param=param, spec=schema_spec(schema), schema=schema)


def _parsed(value: Any, limits: Limits, param: str) -> Any:
    """vLLM takes a schema as an object or as text."""
    if not isinstance(value, str):
        return value
    if len(value) > limits.schema_bytes:
        raise invalid(f"{param}: has {len(value)} characters; at most {limits.schema_bytes} are served", param=param)
    return JsonTexts(limits).parse(value, param=param, expects="is a string and no JSON")


def _check_choices(value: Any, limits: Limits, param: str) -> list[str]:
    if not isinstance(value, list) or not value or any(not isinstance(choice, str) or not choice for choice in value):
        raise invalid(f"{param}: must be a list of strings that are not empty", param=param)
    if len(value) > limits.structured_choices:
        message = f"{param}: has {len(value)} entries; at most {limits.structured_choices} are served"
        raise invalid(message, param=param)
    if sum(map(len, value)) > limits.schema_bytes:
        raise invalid(f"{param}: is longer than {limits.schema_bytes} characters", param=param)
    return value

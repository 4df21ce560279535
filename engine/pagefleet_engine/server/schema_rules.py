"""Rules that a client's JSON schema must keep before any compiler sees it: size, depth, references, patterns. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pagefleet_engine.server.errors import invalid, shorten
from pagefleet_engine.server.json_shape import json_fits
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.structured.spec import Json

_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")
_NESTING: Final = 64
"""Open brackets of a regular expression or grammar."""


def check_schema_rules(schema: Any, limits: Limits, *, param: str) -> Json:
    """The schema itself. Raises `ApiError`."""
    if not isinstance(schema, dict):
        raise invalid(f"{param}: must be a JSON schema, an object", param=param)
    if not json_fits(schema, limits.schema_bytes):
        raise invalid(f"{param}: has more than the {limits.schema_bytes} bytes that are served", param=param)
    for value, depth in _walk(schema):
        if depth > limits.schema_depth:
            raise invalid(f"{param}: is nested more than {limits.schema_depth} deep", param=param)
        if isinstance(value, dict):
            _check_object(value, limits, param)
    return schema


def _check_object(value: Json, limits: Limits, param: str) -> None:
    reference = value.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        message = f"{param}: $ref {shorten(reference)} leads out of the schema: only references like #/$defs/name"
        raise invalid(message, param=param)
    if any(isinstance(value.get(name), str) for name in _DYNAMIC):
        raise invalid(f"{param}: {' and '.join(_DYNAMIC)} are not served: use $ref", param=param)
    patterns = value.get("patternProperties")
    for pattern in (value.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str):
            check_regex(pattern, limits, param=param)


def check_regex(pattern: str, limits: Limits, *, param: str) -> str:
    """The pattern itself, if it is short and flat enough. Raises `ApiError`."""
    if len(pattern) > limits.regex_chars:
        message = f"{param}: a pattern has {len(pattern)} characters; at most {limits.regex_chars} are served"
        raise invalid(message, param=param)
    check_nesting(pattern, param=param)
    return pattern


def check_nesting(text: str, *, param: str) -> None:
    """Counts brackets in literals too, so it may refuse early, never late. Raises `ApiError`."""
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}" and depth > 0)
        if depth > _NESTING:
            raise invalid(f"{param}: more than {_NESTING} brackets are open at once", param=param)


def _walk(schema: Json) -> Iterator[tuple[Any, int]]:
    """Every value with its depth; without recursion, since the depth is what is to be checked."""
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        value, depth = stack.pop()
        yield value, depth
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack.extend((child, depth + 1) for child in children)

"""A walk over the resource's structural schema: every leaf field by its path. For the reference page and the tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.api import crd


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A field that holds a value, or a list or map of values, not further fields."""

    path: str
    """Such as `spec.routes[].kvPrecision.policy`; `[]` stands for every entry of a list."""
    schema: dict[str, Any]
    required: bool


def leaves(part: str) -> Iterator[Leaf]:
    """The leaf fields of `spec` or `status`, in the order of the types."""
    yield from _walk(part, crd.object_schema()["properties"][part], required=True)


def _walk(path: str, schema: dict[str, Any], *, required: bool) -> Iterator[Leaf]:
    items = schema.get("items", {})
    if "properties" in schema:
        for name, field in schema["properties"].items():
            yield from _walk(f"{path}.{name}", field, required=name in schema.get("required", ()))
    elif "properties" in items:
        yield from _walk(f"{path}[]", items, required=True)
    else:
        yield Leaf(path=path, schema=schema, required=required)

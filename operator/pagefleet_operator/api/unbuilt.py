"""What this version does not do although the resource can ask for it: refused, never ignored.

Whoever builds a behaviour removes its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pagefleet_operator.api.model_uri import ModelScheme, parse_model_uri
from pagefleet_operator.api.problems import FieldProblem
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt:
    """One field of which not every valid value has a behaviour."""

    path: str
    """In camelCase below spec."""
    what: str
    """What the field would do."""
    remedy: str
    """What to do about it."""
    asks_for_it: Callable[[LLMServiceSpec], bool]


def _is_in_a_registry(spec: LLMServiceSpec) -> bool:
    return parse_model_uri(spec.model.uri).scheme is ModelScheme.OCI


UNBUILT: Final = (
    Unbuilt(
        path="model.uri",
        what="fetching models from an oci:// registry",
        remedy="use a file://, pvc:// or hf:// URI",
        asks_for_it=_is_in_a_registry,
    ),
)


def unbuilt_fields(spec: LLMServiceSpec) -> list[FieldProblem]:
    """Every field of the spec that asks for something this version cannot do."""
    return [
        FieldProblem(path=f"spec.{row.path}", message=f"{row.what} is not built yet: {row.remedy}")
        for row in UNBUILT
        if row.asks_for_it(spec)
    ]

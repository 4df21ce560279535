"""From the raw spec of a stored object to the typed one, or to sentences about what is wrong with it.

The API server has checked most of it already; an object stored under an older schema has not been checked by this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pagefleet_operator.api.base import BROKEN_RULES
from pagefleet_operator.api.problems import FieldProblem
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec

MAX_PROBLEMS: Final = 10

_SENTENCES: Final = {
    "missing": "is required: add it",
    "extra_forbidden": "is no field of this resource: remove it or correct its spelling",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_type": "must be text: put it in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a map of names to values",
    "model_type": "must be an object with fields",
}


def validate(spec: Mapping[str, Any] | None) -> LLMServiceSpec | list[FieldProblem]:
    """The typed spec with every default, or at most `MAX_PROBLEMS` problems, at least one."""
    try:
        return LLMServiceSpec.model_validate(dict(spec or {}), by_name=False, by_alias=True)
    except ValidationError as error:
        problems = [problem for details in error.errors() for problem in _problems(details)]
        return problems[:MAX_PROBLEMS]


def _problems(details: ErrorDetails) -> list[FieldProblem]:
    path = _path(details["loc"])
    if details["type"] == BROKEN_RULES:
        return [
            FieldProblem(path=path if field is None else f"{path}.{field}", message=message)
            for field, message in details["ctx"]["broken"]
        ]
    sentence = _SENTENCES.get(details["type"])
    message = details["msg"] if sentence is None else sentence.format_map(details.get("ctx", {}))
    return [FieldProblem(path=path, message=message)]


def _path(location: tuple[int | str, ...]) -> str:
    """`("routes", 0, "name")` -> `spec.routes[0].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location if step != "[key]")
    return "spec" + "".join(steps)

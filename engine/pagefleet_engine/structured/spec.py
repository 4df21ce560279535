"""What an answer has to look like, as a value: the key under which its compiled form is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Json = dict[str, Any]


class Kind(StrEnum):
    """The language that a specification is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    """Lark, in the dialect of llguidance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One specification; equal ones compile to the same."""

    kind: Kind
    text: str


ANY_OBJECT: Final[Json] = {"type": "object"}
"""The schema of `json_object`."""

_JSON_OPTIONS: Final[Json] = {
    # Nothing, one space, or a new line with its indentation: a model cannot get lost in white space.
    "whitespace_pattern": r"\x20?|\x0A\x20{0,24}",
    "coerce_one_of": True,
    "lenient": False,
}


def guided(schema: Mapping[str, Any]) -> Json:
    """The schema with our own options for the compiler, in place of those that a client may have put there."""
    return {**schema, "x-guidance": _JSON_OPTIONS}


def schema_spec(schema: Mapping[str, Any]) -> Spec:
    """JSON that fits the schema."""
    return Spec(kind=Kind.JSON_SCHEMA, text=json.dumps(guided(schema), ensure_ascii=False))


def choice_spec(choices: Sequence[str]) -> Spec:
    """One of these texts."""
    return Spec(kind=Kind.GRAMMAR, text="start: " + " | ".join(quoted(choice) for choice in choices) + "\n")


def quoted(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)

"""Pieces of the grammars that hold a model to calls, and of the texts that calls are written as, for all forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagefleet_engine.server.tools import Tool
from pagefleet_engine.structured.spec import Json, guided, quoted


def shown(*token_ids: int | None) -> frozenset[int]:
    """Those of a form's markers that are special tokens."""
    return frozenset(token_id for token_id in token_ids if token_id is not None)


def terminal(marker: str, token_id: int | None) -> str:
    """A marker in a grammar: its token where it is a special one, which a literal cannot stand for."""
    return quoted(marker) if token_id is None else f"<[{token_id}]>"


def call_rules(tools: Sequence[Tool], key: str) -> list[str]:
    """Rules of a grammar: `function` is one of these tools as an object, with its arguments under `key`."""
    lines = ["function: " + " | ".join(f"f{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        lines += [f'f{i}: {quoted(head)} a{i} "}}"', arguments_rule(i, tool)]
    return lines


def arguments_rule(i: int, tool: Tool) -> str:
    """`a{i}` is the arguments of a tool."""
    return f"a{i}: %json {json.dumps(guided(tool.parameters))}"


def repeated(rule: str, separator: str, most: int) -> str:
    """One to `most` of a rule, as a part of a grammar."""
    return f"{rule} ({separator} {rule}){{0,{most - 1}}}" if most > 1 else rule


def as_json(call: Mapping[str, Any], key: str) -> str:
    """A call as an object, with its arguments under `key`."""
    value: Json = {"name": call["name"], key: call["arguments"]}
    return json.dumps(value, ensure_ascii=False)

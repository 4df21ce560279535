"""Hostile JSON by its size and by what stands inside its strings. Sends nothing."""

from __future__ import annotations

import random
from typing import Any

_MEBIBYTE = 2**20

TEXTS = (
    r'{"a": "\ud800"}',
    r'{"a": "\ud83d\ude00"}',
    r'{"\udc00": 1}',
    r'{"type": "string", "pattern": "\ud800"}',
    r'{"enum": ["\ude00\ud83d"]}',
    r'{"properties": {"a\udfff": {"type": "string"}}}',
    '{"a": 1e400}',
    '{"a": NaN}',
    '{"a": ' + "9" * 5_000 + "}",
    '{"a": ' * 100 + "1" + "}" * 100,
    "[" * 5_000 + "]" * 5_000,
    '{"a": [' + "{}," * 60_000 + "{}]}",
    '{"enum": ["' + "x" * 70_000 + '"]}',
    "",
    " ",
    "null",
    "{",
)
"""JSON as a string inside a body, most of it none."""


def random_nested(rng: random.Random) -> dict[str, Any]:
    """Fields of a chat request that hold JSON in a string."""
    text = rng.choice(TEXTS)
    kind = rng.randrange(4)
    if kind == 0:
        return {"guided_json": text}
    if kind == 1:
        return {"structured_outputs": {"json": text}}
    call = {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": text}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call] * rng.choice((1, 1, 20))}
    said = f'<tool_call>{{"name": "move", "arguments": {text}}}</tool_call>'
    answer = assistant if kind == 2 else {"role": "assistant", "content": said}
    return {"messages": [{"role": "user", "content": "hi"}, answer, {"role": "user", "content": "go on"}]}


_ITEMS = (b"{},", b"[],", b'"",', b"1,", b'{"a":{}},', b'"[,{",', b'"\\"",', b"1.5e3 ,")


def large_body(rng: random.Random) -> bytes:
    """Up to the size that is read at all: many small values, one long text, or deep brackets."""
    size = rng.randrange(_MEBIBYTE, 10 * _MEBIBYTE - 1_000)
    kind = rng.random()
    if kind < 0.1:
        return b'{"prompt": ' + b"[" * size
    if kind < 0.3:
        text = rng.choice((b"a", b"[{,", b"\\u0041", b"\\\\", b"\xc3\xa9"))
        return b'{"prompt": "' + text * (size // len(text)) + b'", "max_tokens": 1}'
    item = rng.choice(_ITEMS)
    end = rng.choice((b"1]}", b"1]}", b"1]", b"\\ud800"))
    return b'{"' + rng.choice((b"prompt", b"messages", b"tokens")) + b'": [' + item * (size // len(item)) + end

"""How much a piece of JSON holds: counted in the text before anything is built of it, and checked in the value.

Pure. A parser keeps the interpreter's lock until it is done, so what is too large must not reach one.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.limits import Limits

_STRING: Final = re.compile(rb'"[^"]*"')
_BEGINNING: Final = 2 * 1024 * 1024
"""Bytes that are looked at alone first: what is far too large mostly shows there."""


def holds_more_values(raw: bytes | bytearray, most: int) -> bool:
    """Whether JSON holds more than `most` values, lists and objects included; a key that comes twice counts twice.

    Exact for JSON; of other text it may say either, and a parser refuses that. Takes a few passes over the bytes, each
    without a Python object per value.
    """
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") < most:
        return False  # even if none of them stood in a string
    if len(raw) > _BEGINNING and _holds_more(raw[:_BEGINNING], most + 1):  # one may turn out to be empty
        return True
    return _holds_more(raw, most)


def _holds_more(raw: bytes | bytearray, most: int) -> bool:
    text = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 4 * most:
        return True  # a string is a value or the key of one
    bare = _STRING.sub(b"s", text).translate(None, b" \t\r\n")
    empty = bare.count(b"[]") + bare.count(b"{}")
    return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{") - empty > most


def check_shape(value: Any, limits: Limits, *, what: str = "the body", param: str | None = None) -> None:
    """Depth, number of values, and numbers that are not finite. Raises `ApiError`.

    Level by level, so that the depth of the value never becomes the depth of our stack.
    """
    level, depth, num_values = [value], 0, 1
    while level:
        depth += 1
        if depth > limits.json_depth:
            raise invalid(f"{what} nests deeper than {limits.json_depth} levels", param=param, code="json_too_deep")
        below: list[Any] = []
        for item in level:
            below.extend(item.values() if isinstance(item, dict) else item)
        num_values += len(below)
        if num_values > limits.json_nodes:
            raise invalid(f"{what} holds more than {limits.json_nodes} values", param=param, code="json_too_large")
        if any(isinstance(item, float) and not math.isfinite(item) for item in below):
            raise invalid(f"{what} holds a number that is too large", param=param, code="invalid_json")
        level = [item for item in below if isinstance(item, dict | list)]


def json_fits(value: Any, most: int) -> bool:
    """Whether a value has at most `most` characters as JSON; what is far larger is not written out to see that."""
    least, stack = 0, [value]
    while stack:
        item = stack.pop()
        least += len(item) if isinstance(item, str | dict | list) else 1
        if least > most:
            return False
        stack.extend(item.items() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ())
    return len(json.dumps(value)) <= most

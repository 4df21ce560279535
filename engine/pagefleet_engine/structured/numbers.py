"""Numbers that llguidance 1.9 cannot take: with a constant that rounds to -2^63 its compiler recurses until the process
dies, which no process can catch. They are refused before it sees them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.spec import Kind, Spec

LEAST: Final = -92 * 10**17
"""A round number above -2^63, so that no rounding or step of the compiler gets there from what is allowed."""

_NEGATIVE: Final = re.compile(r"-\d+(?:\.\d+)?(?:[eE]\+?\d+)?")


def check_numbers(spec: Spec) -> None:
    """Raises `RequestRefused` for a schema, alone or inside a grammar, with a number below `LEAST`."""
    if spec.kind is Kind.JSON_SCHEMA:
        found = _numbers_of(json.loads(spec.text))
    elif spec.kind is Kind.GRAMMAR and "%json" in spec.text:
        found = (float(text) for text in _NEGATIVE.findall(spec.text))
    else:
        return
    if any(number < LEAST for number in found):
        raise RequestRefused("numbers below -9.2e18 are not supported")


def _numbers_of(value: Any) -> Iterator[float]:
    """Every number of a JSON document, whatever its depth."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
        elif isinstance(item, int | float):
            yield item

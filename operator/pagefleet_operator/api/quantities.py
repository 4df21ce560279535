"""Kubernetes quantities, durations and shares: the text that people write, as numbers.

Numbers with a fraction are text in the resource, because floats do not survive a round trip through every client.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?"
)
_DURATION: Final = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?(?:([0-9]{1,6})ms)?")
_SHARE: Final = re.compile(r"[01](?:\.[0-9]{1,6})?")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str) -> Decimal:
    """`512Mi` -> 536870912, `500m` -> 0.5. Raises `ValueError` with one sentence."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity: write for example 500m, 2, 512Mi or 4Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY:
        return number * Decimal(2) ** _BINARY[suffix]
    exponent = int(suffix[1:]) if suffix[1:] else _DECIMAL.get(suffix, 0)
    return number * Decimal(10) ** exponent


def parse_duration(text: str) -> timedelta:
    """`1h30m` -> 90 minutes; hours, minutes, seconds and milliseconds, in this order. Raises `ValueError`."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is no duration: write for example 100ms, 30s, 5m or 1h30m")
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in match.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)


def parse_share(text: str) -> float:
    """`"0.90"` -> 0.9; a share of something, 0 to 1. Raises `ValueError`."""
    if _SHARE.fullmatch(text) is None or float(text) > 1:
        raise ValueError(f'{text!r} is no share: write a quoted number from 0 to 1, such as "0.90"')
    return float(text)

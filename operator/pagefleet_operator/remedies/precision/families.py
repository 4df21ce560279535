"""Model families that are known to be damaged by an FP8 KV cache; their routes start in the fallback precision.

Each entry names where the damage was reported. The reports are about accuracy, which schema verdicts do not show, so
such a route is not probed by itself: a person resets it when the model is known to be good here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models whose name or address has `part` in it, letter case aside."""

    part: str
    damage: str
    source: str


FAMILIES: Final = (
    Family(
        part="qwen2.5-math",
        damage="accuracy near 0 and garbled answers with an FP8 KV cache; the model has no QK norm",
        source="https://github.com/verl-project/verl/pull/4435",
    ),
    Family(
        part="glm-5.1",
        damage="AIME 2026 at 76.7 instead of 95.3 with an FP8 E4M3 KV cache",
        source="https://github.com/sgl-project/sglang/issues/22671",
    ),
)


def find_family(name: str | None, uri: str) -> Family | None:
    """The family that the model's name or address belongs to."""
    text = f"{name or ''} {uri}".lower()
    return next((family for family in FAMILIES if family.part in text), None)

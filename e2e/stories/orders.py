"""Requests whose answers have a schema: a note about an order, to be written as JSON.

The long ones must copy from tokens that are sealed by then; the short ones end before a group of 32 tokens is full, so
the KV precision cannot touch them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any, Final

ITEMS: Final = (
    *("apple", "river", "stone", "cloud", "tiger", "piano", "green", "seven"),
    *("maple", "coral", "delta", "ember", "frost", "grape", "honey", "ivory"),
)


def long_requests(model: str, count: int, seed: int = 0) -> list[Mapping[str, Any]]:
    """Two examples and a question each, about 75 tokens."""
    chance = random.Random(seed)
    return [_long(model, chance) for _ in range(count)]


def short_requests(model: str, count: int, seed: int = 0) -> list[Mapping[str, Any]]:
    """Fewer than 32 tokens, the answer included."""
    chance = random.Random(seed)
    return [_short(model, chance.randint(10, 99)) for _ in range(count)]


def _long(model: str, chance: random.Random) -> Mapping[str, Any]:
    examples = [(chance.choice(ITEMS), chance.randint(100, 999)) for _ in range(2)]
    asked = chance.choice(ITEMS), chance.randint(100, 999)
    told = "\n\n".join(f"{_note(*order)} {_answer(*order)}" for order in examples)
    return _request(model, f"{told}\n\n{_note(*asked)}", {"item": asked[0], "number": asked[1]}, max_tokens=24)


def _short(model: str, number: int) -> Mapping[str, Any]:
    pair = json.dumps({"n": number})
    return _request(model, f"JSON: {pair}\nJSON: {pair}\nJSON:", {"n": number}, max_tokens=10)


def _note(item: str, number: int) -> str:
    return f"Order for {item}, number {number}.\nJSON:"


def _answer(item: str, number: int) -> str:
    return json.dumps({"item": item, "number": number})


def _request(model: str, prompt: str, want: Mapping[str, Any], max_tokens: int) -> Mapping[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: {"const": value} for name, value in want.items()},
        "required": list(want),
        "additionalProperties": False,
    }
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stop": ["\n"],
        "structured_outputs": {"json": schema},
    }

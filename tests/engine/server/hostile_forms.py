"""Random forms for answers, most of them broken: schemas, expressions, grammars, tools. Sends nothing."""

from __future__ import annotations

import random
from typing import Any


def words(*lines: str) -> list[str]:
    return " ".join(lines).split()


KEYWORDS = words(
    "type properties items prefixItems required enum const pattern format anyOf allOf oneOf not $ref $defs minItems",
    "maxItems minLength maxLength minimum maximum multipleOf additionalProperties patternProperties uniqueItems if",
    "then contains $id $schema propertyNames minProperties dependentRequired unevaluatedProperties x-guidance $anchor",
)
VALUES: list[Any] = [
    *words("string object array integer null strin (a+)+$ (( ^a date uuid # #/$defs/a http://x/y http://["),
    *(
        "",
        "http://json-schema.org/draft-07/schema#",
        0,
        1,
        -1,
        10**9,
        2**63,
        -(2**63),
        -1e19,
        0.5,
        1e300,
        True,
        False,
        None,
    ),
    *([], {}, ["a"], [{}], {"a": {}}, {"type": "string"}, [1, "a", None], {"a": {"$ref": "#"}}),
]
PATTERNS = [*words(r"a ( ) [a-z] * + {2} {1,900} | \d \ ^ $ . (?=a) é \p{L}"), " ", "\0"]
RULES = [*words('start: a: "x" /[a-z]+/ | a start ( ) * %json {} %import ~3 {0,9}'), "\n"]
GRAMMARS = [
    "\n".join(["start: a0", *(f"a{i:x}:a{i + 1:x}" for i in range(4_000)), 'afa0:"x"']),
    'start: %json {"const": -9223372036854775808}',
    "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
]
REGEXES = ["[0-9]{3}", "(a+)+b", "(" * 3_000 + ")" * 3_000, "a{1000000}", "((a{99}){99}){99}", "(?i)yes|no"]


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.2:
        return rng.choice(VALUES)
    schema = {rng.choice(KEYWORDS): random_schema(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    if rng.random() < 0.3:
        schema["properties"] = {"a": random_schema(rng, depth + 1)}
    return schema


def random_form(rng: random.Random) -> dict[str, Any]:
    """Fields of a chat request."""
    if rng.randrange(6) == 0:
        function = {"name": rng.choice(["f", "a b", "", 5]), "parameters": random_schema(rng)}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": rng.choice(["auto", "required"])}
    return random_text_form(rng)


def random_text_form(rng: random.Random) -> dict[str, Any]:
    """Fields of either kind of completion."""
    kind = rng.randrange(5)
    if kind == 0:
        pattern = rng.choice(REGEXES) if rng.random() < 0.2 else "".join(rng.choices(PATTERNS, k=rng.randint(1, 8)))
        return {"structured_outputs": {"regex": pattern}}
    if kind == 1:
        rules = "start: " + " ".join(rng.choices(RULES, k=rng.randint(1, 9)))
        return {"guided_grammar": rng.choice(GRAMMARS) if rng.random() < 0.1 else rules}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": random_schema(rng)}}}

"""Random forms, most of them broken: the engine answers each with 200, 400 or 429, and goes on."""

from __future__ import annotations

import random
from typing import Any

from tests.engine.server.scripted import VALIDATING, scripted


def words(*lines: str) -> list[str]:
    return " ".join(lines).split()


KEYWORDS = words(
    "type properties items prefixItems required enum const pattern format anyOf allOf oneOf not $ref $defs minItems",
    "maxItems minLength maxLength minimum maximum multipleOf additionalProperties patternProperties uniqueItems if",
    "then contains $id $schema propertyNames minProperties dependentRequired unevaluatedProperties x-guidance $anchor",
)
VALUES: list[Any] = [
    *words("string object array integer null strin (a+)+$ (( ^a date uuid # #/$defs/a http://x/y http://["),
    *("", "http://json-schema.org/draft-07/schema#", 0, 1, -1, 10**9, 2**63, 0.5, 1e300, True, False, None),
    *([], {}, ["a"], [{}], {"a": {}}, {"type": "string"}, [1, "a", None], {"a": {"$ref": "#"}}),
]
PATTERNS = [*words(r"a ( ) [a-z] * + {2} {1,900} | \d \ ^ $ . (?=a) é \p{L}"), " ", "\0"]
RULES = [*words('start: a: "x" /[a-z]+/ | a start ( ) * %json {} %import ~3 {0,9}'), "\n"]


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.2:
        return rng.choice(VALUES)
    schema = {rng.choice(KEYWORDS): random_schema(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    if rng.random() < 0.3:
        schema["properties"] = {"a": random_schema(rng, depth + 1)}
    return schema


def random_form(rng: random.Random) -> dict[str, Any]:
    kind = rng.randrange(6)
    if kind == 0:
        form: dict[str, Any] = {"structured_outputs": {"regex": "".join(rng.choices(PATTERNS, k=rng.randint(1, 8)))}}
    elif kind == 1:
        form = {"guided_grammar": "start: " + " ".join(rng.choices(RULES, k=rng.randint(1, 9)))}
    elif kind == 2:
        function = {"name": rng.choice(["f", "a b", "", 5]), "parameters": random_schema(rng)}
        form = {"tools": [{"type": "function", "function": function}], "tool_choice": rng.choice(["auto", "required"])}
    else:
        form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": random_schema(rng)}}}
    return form | {"max_tokens": 8, "stream": rng.random() < 0.3, "model": rng.choice([None, VALIDATING])}


async def test_random_forms_do_no_harm():
    rng = random.Random(5)
    statuses: dict[int, int] = {}
    wrong = []
    async with scripted(noise=4.0) as running:
        for _ in range(400):
            form = random_form(rng)
            reply = await running.say('{"a": "b"}', **form)
            statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
            if reply.status_code not in (200, 400) or "internal_error" in reply.text:
                wrong.append((reply.status_code, reply.text, form))
        assert wrong == []
        assert statuses[200] > 50
        assert statuses[400] > 50
        assert (await running.say("calm")).json()["choices"][0]["message"]["content"]

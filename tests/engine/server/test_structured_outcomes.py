"""Every outcome happens and is counted exactly once: whole and streamed, held and only validated, for each of `n`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx
import jsonschema
import pytest

from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT, VALIDATING, ask, scripted

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}}
TOOL = {"type": "function", "function": {"name": "move", "parameters": POINT}}


def call(arguments: str, name: str = "move") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


FORCED = {"tools": [TOOL], "tool_choice": "required"}
AUTO = {"tools": [TOOL]}
GOOD = '{"x": 1, "y": 2}'
ROWS = {
    "valid": (FORMAT, GOOD, "valid"),
    "no JSON": (FORMAT, "The point is (1, 2).", "invalid_json"),
    "JSON in a fence": (FORMAT, f"```json\n{GOOD}\n```", "invalid_json"),
    "another shape": (FORMAT, '{"x": 1}', "schema_violation"),
    "cut off": (FORMAT | {"max_tokens": 5}, GOOD, "truncated"),
    "cut off where it was complete": (FORMAT | {"max_tokens": len(GOOD)}, GOOD, "valid"),
    "a stop string inside": (FORMAT | {"stop": "y"}, GOOD, "invalid_json"),
    "any object": ({"response_format": {"type": "json_object"}}, "{}", "valid"),
    "no object": ({"response_format": {"type": "json_object"}}, "[]", "schema_violation"),
    "vLLM's spelling": ({"structured_outputs": {"json": POINT}}, '{"x": 1}', "schema_violation"),
    "its older spelling, as text": ({"guided_json": json.dumps(POINT)}, GOOD, "valid"),
    "a call that was asked for": (FORCED, call(GOOD), "valid"),
    "no call although asked for": (FORCED, "I would rather not.", "invalid_json"),
    "a call with other arguments": (FORCED, call('{"x": 1}'), "schema_violation"),
    "a call of an unknown function": (FORCED, call(GOOD, "fly"), "schema_violation"),
    "arguments that are no JSON": (FORCED, call("{x: 1}"), "invalid_json"),
    "a call cut off": (FORCED | {"max_tokens": 45}, call(GOOD), "truncated"),
    "one good call and a bad one": (FORCED, call(GOOD) + call('{"x": 1}'), "schema_violation"),
    "a call that nobody asked for": (AUTO, call(GOOD), "valid"),
    "a bad one that nobody asked for": (AUTO, call("{}"), "schema_violation"),
    "text where a call was possible": (AUTO, "Hello", None),
    "no schema": ({}, "Hello", None),
    "tools that must not be called": (AUTO | {"tool_choice": "none"}, call(GOOD), None),
    "tools and a schema, and a call": (AUTO | FORMAT, call(GOOD), "valid"),
    "tools and a schema, and an answer": (AUTO | FORMAT, '{"x": 1}', "schema_violation"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_outcomes_of_answers_that_are_only_validated(stream):
    wrong = {}
    async with scripted() as running:
        before: Counter = Counter()
        for sentence, (fields, text, outcome) in ROWS.items():
            reply = await running.say(text, model=VALIDATING, stream=stream, **fields)
            assert reply.status_code == 200, reply.text
            after = Counter(await running.counts())
            want = {} if outcome is None else {("checked", "bf16", "false", outcome): 1}
            if dict(after - before) != want:
                wrong[sentence] = dict(after - before)
            before = after
    assert wrong == {}


HELD = [row for row, (fields, _, _) in ROWS.items() if fields in (FORMAT, FORCED)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_where_the_route_does_not_validate_the_same_answers_are_held_and_valid(stream):
    async with scripted(noise=1.0) as running:
        for sentence in HELD:
            fields, text, _ = ROWS[sentence]
            reply = await running.say(text, stream=stream, **fields)
            assert reply.status_code == 200, reply.text
        counts = await running.counts()
    assert set(counts) <= {("default", "bf16", "true", "valid"), ("default", "bf16", "true", "truncated")}
    assert sum(counts.values()) == len(HELD)
    assert counts["default", "bf16", "true", "valid"] >= len(HELD) - 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_choice_is_counted_once(stream):
    async with scripted() as running:
        await running.say(GOOD, model=VALIDATING, n=3, stream=stream, **FORMAT)
        assert await running.counts() == {("checked", "bf16", "false", "valid"): 3}


async def test_counters_are_exact_while_the_logits_are_perturbed():
    """Noise makes most outcomes happen by themselves; every answer is judged again here, by another validator."""
    want: Counter = Counter()
    async with scripted(noise=2.2, seed=1) as running:
        texts = [json.dumps({"x": i, "y": i}) for i in range(40)]
        limits = [12 if i % 4 == 0 else 60 for i in range(40)]
        replies = await asyncio.gather(
            *(
                running.say(text, model=VALIDATING, max_tokens=limit, **FORMAT)
                for text, limit in zip(texts, limits, strict=True)
            )
        )
        for reply in replies:
            [choice] = reply.json()["choices"]
            want["checked", "bf16", "false", outcome_of(choice)] += 1
        counts = await running.counts()
    assert counts == want
    assert {outcome for *_, outcome in counts} == {"valid", "invalid_json", "schema_violation", "truncated"}


def outcome_of(choice: dict) -> str:
    try:
        value = json.loads(choice["message"]["content"])
    except ValueError:
        outcome = "invalid_json"
    else:
        outcome = "valid" if jsonschema.Draft202012Validator(POINT).is_valid(value) else "schema_violation"
    return "truncated" if choice["finish_reason"] == "length" and outcome != "valid" else outcome


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_that_leaves_makes_an_aborted_answer(stream):
    gate = asyncio.Semaphore(3)
    engine = FakeEngine(say(GOOD), gate=gate)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        asking = asyncio.create_task(client.post(CHAT, json={"messages": ask("x"), "stream": stream, "n": 2} | FORMAT))
        await engine.until(lambda: len(engine.running) == 2)
        asking.cancel()
        await engine.until(lambda: not engine.running)
        assert counted(server.service) == {("default", "bf16", "true", "aborted"): 2.0}


async def test_an_error_of_the_engine_makes_an_aborted_answer():
    engine = FakeEngine(say(GOOD))
    engine.error = "NaN in the logits"
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.post(CHAT, json={"messages": ask("x")} | FORMAT)).status_code == 500
        assert counted(server.service) == {("default", "bf16", "true", "aborted"): 1.0}


async def test_a_request_that_the_engine_did_not_take_is_no_answer():
    engine = FakeEngine(say(GOOD), max_running=0)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.post(CHAT, json={"messages": ask("x")} | FORMAT)).status_code == 429
        assert counted(server.service) == {}


async def test_an_answer_whose_precision_changed_is_counted_as_mixed():
    engine = FakeEngine(say(GOOD))
    engine.mixed = True
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post(CHAT, json={"messages": ask("x"), "stream": True} | FORMAT)
        assert counted(server.service) == {("default", "mixed", "true", "valid"): 1.0}


async def test_the_precision_is_the_one_that_the_route_gave():
    route = RouteConfig(name="default", model="m", precision=Precision.FP8_E4M3, structured="validate")
    service = Service(limits=Limits())
    engine = FakeEngine(say(GOOD))
    service.attach(engine, (route,))
    async with running_server(engine, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        service.set_routes((route,))
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 50} | FORMAT)
        assert counted(server.service) == {("default", "fp8_e4m3", "false", "valid"): 1.0}


async def test_answers_whose_length_chose_the_precision_are_compared_with_none():
    precisions = {"precision": Precision.FP8_E4M3, "control_precision": Precision.BF16}
    route = RouteConfig(name="default", model="m", structured="validate", max_context=30, **precisions)
    service, engine = Service(limits=Limits()), FakeEngine(say(GOOD))
    service.attach(engine, (route,))
    async with running_server(engine, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        service.set_routes((route,))
        for max_tokens in (20, 200):
            await client.post("/v1/completions", json={"prompt": "x", "max_tokens": max_tokens} | FORMAT)
        assert [options.precision for options in engine.options] == [Precision.FP8_E4M3, Precision.BF16]
        assert counted(server.service) == {
            ("default", "fp8_e4m3", "false", "valid"): 1.0,
            ("default", "mixed", "false", "valid"): 1.0,
        }


def counted(service: Service) -> dict:
    """The counter's samples that are not zero."""
    found = {}
    for line in service.metrics.render(["pagefleet:structured_outputs_total"]).decode().splitlines():
        if not line.startswith("#") and not line.endswith(" 0.0"):
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            key = tuple(labels[name].strip('"') for name in ("route", "precision", "constrained", "outcome"))
            found[key] = float(line.rsplit(" ", 1)[1])
    return found

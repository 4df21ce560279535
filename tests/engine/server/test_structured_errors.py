"""What a client reads when it asks for a form or for tools in a wrong way: exact field, exact sentence, never a crash.

A row is a sentence, the fields of the request, the field that the error names, and the message or its beginning.
"""

from __future__ import annotations

import asyncio

import httpx

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT, scripted

USER = [{"role": "user", "content": "hi"}]
LIMITS = Limits(
    schema_bytes=2_000,
    schema_depth=12,
    regex_chars=100,
    structured_choices=3,
    tools=3,
    tools_bytes=1_000,
)


def schema(value) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def nested(depth: int) -> dict:
    value: dict = {"type": "string"}
    for _ in range(depth):
        value = {"items": value}
    return value


def tool(name="f", parameters=None, **more) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": parameters} | more}


def outputs(**fields) -> dict:
    return {"structured_outputs": fields}


SCHEMA = "response_format.json_schema.schema"
PARAMETERS = "tools.0.function.parameters"
FORMAT_FORM = 'response_format: must be like {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
NAMED = {"type": "function", "function": {"name": "g"}}
ROWS = {
    # response_format
    "response_format a text": ({"response_format": "json"}, "response_format", FORMAT_FORM),
    "response_format of an unknown type": ({"response_format": {"type": "xml"}}, "response_format", FORMAT_FORM),
    "json_schema missing": (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "response_format.json_schema: must be an object with name and schema",
    ),
    "no schema in it": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        SCHEMA,
        f"{SCHEMA}: must be a JSON schema, an object",
    ),
    "a schema that is a list": (schema([]), SCHEMA, f"{SCHEMA}: must be a JSON schema, an object"),
    "CVE-2025-48942: a type that is none": (schema({"type": "strin"}), SCHEMA, f"{SCHEMA}: $.type: 'strin' is not"),
    "CVE-2025-48943: a broken pattern": (
        schema({"type": "string", "pattern": "(("}),
        SCHEMA,
        f"{SCHEMA}: regex parse error: unclosed group",
    ),
    "CVE-2026-105757: a pattern with look-ahead": (
        schema({"type": "string", "pattern": "(?=a)b"}),
        SCHEMA,
        f"{SCHEMA}: regex parse error: look-around",
    ),
    "CVE-2026-25048: 30,000 nested parentheses in a pattern": (
        schema({"pattern": "(" * 900 + ")" * 900}),
        SCHEMA,
        f"{SCHEMA}: a pattern has 1800 characters; at most 100 are served",
    ),
    "a schema nested too deeply": (schema(nested(12)), SCHEMA, f"{SCHEMA}: is nested more than 12 deep"),
    "a large schema": (
        schema({"enum": ["x" * 100] * 30}),
        SCHEMA,
        f"{SCHEMA}: has more than the 2000 bytes that are served",
    ),
    "a reference into the net": (
        schema({"$ref": "http://169.254.169.254/x"}),
        SCHEMA,
        f"{SCHEMA}: $ref 'http://169.254.169.254/x' leads out of the schema: only references like #/$defs/name",
    ),
    "a reference to a file, deep inside": (
        schema({"properties": {"a": {"anyOf": [{"$ref": "file:///etc/passwd"}]}}}),
        SCHEMA,
        f"{SCHEMA}: $ref 'file:///etc/passwd' leads out of the schema: only references like #/$defs/name",
    ),
    "a reference that leads nowhere": (schema({"$ref": "#/$defs/x"}), SCHEMA, f"{SCHEMA}: "),
    "a reference that is decided later": (
        schema({"$dynamicRef": "#x"}),
        SCHEMA,
        f"{SCHEMA}: $dynamicRef and $recursiveRef are not served: use $ref",
    ),
    "CVE-2026-25048: a schema that refers to itself alone": (
        schema({"$ref": "#"}),
        SCHEMA,
        f"{SCHEMA}: nothing can fit it, or it is too costly to follow",
    ),
    "a keyword that no mask can hold to": (
        schema({"uniqueItems": True}),
        SCHEMA,
        f'{SCHEMA}: Unimplemented keys: ["uniqueItems"]',
    ),
    # vLLM's fields
    "structured_outputs a list": (
        {"structured_outputs": []},
        "structured_outputs",
        "structured_outputs: must be an object with one of json, json_object, regex, choice, grammar",
    ),
    "nothing in it": (
        outputs(),
        "structured_outputs",
        "structured_outputs: exactly one of json, json_object, regex, choice, grammar",
    ),
    "two things in it": (
        outputs(regex="a", choice=["a"]),
        "structured_outputs",
        "structured_outputs: exactly one of json, json_object, regex, choice, grammar",
    ),
    "a kind that is not served": (
        outputs(structural_tag="{}"),
        "structured_outputs.structural_tag",
        "structured_outputs.structural_tag is not supported by this engine: leave it out",
    ),
    "a regular expression that is a number": (
        outputs(regex=5),
        "structured_outputs.regex",
        "structured_outputs.regex: must be a string",
    ),
    "a broken regular expression": (
        outputs(regex="(a"),
        "structured_outputs.regex",
        'structured_outputs.regex: at 1(8): invalid regex "(a"',
    ),
    "CVE-2026-25048: nested parentheses in a regular expression": (
        outputs(regex="(" * 65),
        "structured_outputs.regex",
        "structured_outputs.regex: more than 64 brackets are open at once",
    ),
    "a long regular expression": (
        {"guided_regex": "a" * 101},
        "guided_regex",
        "guided_regex: a pattern has 101 characters; at most 100 are served",
    ),
    "choices that are a text": (
        {"guided_choice": "a"},
        "guided_choice",
        "guided_choice: must be a list of strings that are not empty",
    ),
    "no choices": (
        outputs(choice=[]),
        "structured_outputs.choice",
        "structured_outputs.choice: must be a list of strings that are not empty",
    ),
    "too many choices": (
        outputs(choice=list("abcd")),
        "structured_outputs.choice",
        "structured_outputs.choice: has 4 entries; at most 3 are served",
    ),
    "a grammar without its start": (
        outputs(grammar="root ::= x"),
        "structured_outputs.grammar",
        "structured_outputs.grammar: ",
    ),
    "a grammar that reads a file": (
        {"guided_grammar": 'start: %json {"$ref": "file:///etc/passwd"}'},
        "guided_grammar",
        "guided_grammar: at 1(8): failed to compile JSON schema: Resource 'file:///etc/passwd' is not present",
    ),
    "GHSA-5cmr-4px5-23pc: a grammar of open brackets": (
        {"guided_grammar": "start: " + "(" * 65},
        "guided_grammar",
        "guided_grammar: more than 64 brackets are open at once",
    ),
    "a schema in a text that is no JSON": (
        {"guided_json": "{"},
        "guided_json",
        "guided_json: is a string and no JSON",
    ),
    "two fields that ask": (
        {"guided_choice": ["a"], "response_format": {"type": "json_object"}},
        "guided_choice",
        "guided_choice: not together with response_format",
    ),
    "a form and a beam search": (
        {"guided_choice": ["a"], "use_beam_search": True},
        "guided_choice",
        "guided_choice: not together with use_beam_search",
    ),
    # tools
    "tools an object": ({"tools": {}}, "tools", "tools: must be a list of functions"),
    "too many tools": ({"tools": [tool()] * 4}, "tools", "tools: has 4 entries; at most 3 are served"),
    "a tool that is no function": (
        {"tools": [{"type": "retrieval"}]},
        "tools.0",
        'tools.0: must be like {"type": "function", "function": {"name": ..., "parameters": ...}}',
    ),
    "a name with quotes": (
        {"tools": [tool('a"b')]},
        "tools.0.function.name",
        "tools.0.function.name: must be 1 to 64 letters, digits, '_', '-' or '.'",
    ),
    "the same name twice": (
        {"tools": [tool(), tool()]},
        "tools.1.function.name",
        "tools.1.function.name: 'f' is there twice",
    ),
    "a description that is a number": (
        {"tools": [tool(description=5)]},
        "tools.0.function.description",
        "tools.0.function.description: must be a string",
    ),
    "large tools": (
        {"tools": [tool(description="x" * 1_000)]},
        "tools",
        "tools: have more than the 1000 bytes that are served",
    ),
    "CVE-2025-48944: a tool with a type that is none": (
        {"tools": [tool(parameters={"type": "objekt"})]},
        PARAMETERS,
        f"{PARAMETERS}: $.type: 'objekt' is not valid",
    ),
    "CVE-2025-48944: a tool with a broken pattern that has to be called": (
        {"tools": [tool(parameters={"properties": {"a": {"pattern": "(("}}})], "tool_choice": "required"},
        "tools",
        "tools: at 5(5): failed to compile JSON schema: regex parse error:",
    ),
    "a tool that refers to the net": (
        {"tools": [tool(parameters={"$ref": "https://x"})]},
        PARAMETERS,
        f"{PARAMETERS}: $ref 'https://x' leads out",
    ),
    "tool_choice without tools": (
        {"tool_choice": "required"},
        "tool_choice",
        "tool_choice: there are no tools to choose from: send tools",
    ),
    "tool_choice that is no word of it": (
        {"tools": [tool()], "tool_choice": "any"},
        "tool_choice",
        'tool_choice: must be none, auto, required or like {"type": "function", "function": {"name": "..."}}',
    ),
    "tool_choice of a tool that is not there": (
        {"tools": [tool()], "tool_choice": NAMED},
        "tool_choice",
        "tool_choice: there is no tool 'g'",
    ),
    "a form where a call is asked for": (
        {"tools": [tool()], "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
        "response_format: not together with a tool_choice that asks for a call",
    ),
    "parallel_tool_calls a word": (
        {"tools": [tool()], "parallel_tool_calls": "yes"},
        "parallel_tool_calls",
        "parallel_tool_calls: input should be a valid boolean",
    ),
    # calls in the dialogue
    "a result without its call": (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages.0.tool_call_id",
        "messages.0.tool_call_id: must be a string",
    ),
    "a call that is no object": (
        {"messages": [{"role": "assistant", "tool_calls": [1]}]},
        "messages.0.tool_calls.0",
        "messages.0.tool_calls.0: must be an object with id, type and function",
    ),
    "a call without id": (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        "messages.0.tool_calls.0.id",
        "messages.0.tool_calls.0.id: must be a string",
    ),
    "CVE-2025-9141: arguments that are code": (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "exit()"}}]}
            ]
        },
        "messages.0.tool_calls.0.function.arguments",
        "messages.0.tool_calls.0.function.arguments: must be a JSON object in a string",
    ),
}


async def test_each_row():
    """All rows on one connection: an error must not spoil the requests after it."""
    wrong = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096), limits=LIMITS) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for sentence, (fields, param, message) in ROWS.items():
            reply = await client.post(CHAT, json={"messages": USER} | fields)
            error = reply.json().get("error", {})
            is_right = reply.status_code == 400 and error["param"] == param and error["message"].startswith(message)
            if not is_right or "\n" in error["message"]:
                wrong[sentence] = (reply.status_code, error)
        assert (await client.post(CHAT, json={"messages": USER})).status_code == 200
    assert wrong == {}


HARMLESS = (
    {"response_format": None, "tools": None, "tool_choice": None, "structured_outputs": None, "guided_json": None},
    {"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "parallel_tool_calls": None},
    {"tools": [tool()], "tool_choice": "none"},
    {"structured_outputs": {"regex": None, "choice": ["x"], "json_object": False}},
    # what nobody holds the model to may be anything that is a schema
    {"tools": [tool(parameters={"type": "object", "not": {}, "properties": {"a": {"pattern": "(("}}})]},
)


async def test_what_asks_for_nothing_wrong_is_served():
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for fields in HARMLESS:
            reply = await client.post(CHAT, json={"messages": USER} | fields)
            assert reply.status_code == 200, reply.text


async def test_cve_2025_29770_unique_schemas_do_not_pile_up():
    limits = Limits(structured_cache=4, structured_checks=4)
    async with (
        running_server(FakeEngine(say("{}"), max_model_len=4096), limits=limits) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for i in range(40):
            assert (await client.post(CHAT, json={"messages": USER} | schema({"title": f"{i}"}))).status_code == 200
        assert server.service.structured.num_kept <= 8


async def test_refused_schemas_are_not_kept():
    async with running_server(FakeEngine(say("{}"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        for i in range(5):
            await client.post(CHAT, json={"messages": USER} | outputs(regex=f"({i}"))
        assert server.service.structured.num_kept == 0


async def test_equal_schemas_are_compiled_once_even_at_the_same_time():
    async with running_server(FakeEngine(say("{}"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        body = {"messages": USER} | outputs(choice=["a", "b"])
        replies = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(16)))
        assert {reply.status_code for reply in replies} == {200}
        assert server.service.structured.num_kept == 1


async def test_what_takes_too_long_to_compile_is_refused():
    limits = Limits(structured_timeout_s=0.0)
    async with (
        running_server(FakeEngine(say("{}")), limits=limits) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        reply = await client.post(CHAT, json={"messages": USER} | outputs(regex="(a{900}b){900}"))
    message = "structured_outputs.regex: takes longer than 0 s to compile; simplify it"
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)


async def test_when_too_many_wait_to_be_compiled_others_come_back_later():
    limits = Limits(structured_queue=0)
    async with (
        running_server(FakeEngine(say("{}")), limits=limits) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        reply = await client.post(CHAT, json={"messages": USER} | outputs(regex="a"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")


async def test_a_form_that_turns_out_too_costly_is_the_client_s_error_and_its_neighbours_go_on():
    async with scripted() as running:
        costly, calm = await asyncio.gather(
            running.say("a" * 100, **outputs(regex="(a{1000}){1000}")), running.say("b" * 100, max_tokens=100)
        )
        assert costly.status_code == 400
        message = costly.json()["error"]["message"]
        assert message == "the requested structure cannot be followed: lexer error: too many expressions constructed"
        assert calm.json()["choices"][0]["message"]["content"] == "b" * 100
        assert (await running.client.get("/health")).status_code == 200

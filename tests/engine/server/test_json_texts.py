"""JSON inside the strings of a request keeps the rules of the body around it, and has bounds of its own."""

from __future__ import annotations

import httpx

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT

USER = [{"role": "user", "content": "hi"}]
LIMITS = Limits(schema_bytes=2_000, json_text_chars=2_900, json_text_nodes=40)
CALLS = "messages.1.tool_calls"


def calls(*arguments: str) -> dict:
    """A dialogue in which the model has made these calls."""
    made = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": text}} for text in arguments]
    return {"messages": [*USER, {"role": "assistant", "tool_calls": made}]}


def outputs(**fields) -> dict:
    return {"structured_outputs": fields}


ROWS = {
    "a schema as text that is no JSON": (
        {"guided_json": "{"},
        "guided_json",
        "guided_json: is a string and no JSON",
    ),
    "a schema as a long text": (
        {"guided_json": " " * 2_001},
        "guided_json",
        "guided_json: has 2001 characters; at most 2000 are served",
    ),
    "a schema as a text of many values": (
        {"guided_json": '{"enum": [' + "{}," * 40 + "{}]}"},
        "guided_json",
        "guided_json: holds more than 40 values",
    ),
    "a schema as a text with a number that is too large": (
        outputs(json='{"maximum": 1e400}'),
        "structured_outputs.json",
        "structured_outputs.json: holds a number that is too large",
    ),
    "arguments of many values": (
        calls('{"a": [' + "{}," * 40 + "{}]}"),
        f"{CALLS}.0.function.arguments",
        f"{CALLS}.0.function.arguments: holds more than 40 values",
    ),
    "arguments nested too deeply": (
        calls('{"a": ' * 65 + "1" + "}" * 65),
        f"{CALLS}.0.function.arguments",
        f"{CALLS}.0.function.arguments: holds more than 40 values",
    ),
    "arguments that are too long together": (
        calls(*['{"a": "' + "x" * 990 + '"}'] * 3),
        f"{CALLS}.2.function.arguments",
        f"{CALLS}.2.function.arguments: JSON inside strings may have 2900 characters in all",
    ),
}


async def test_each_row():
    wrong = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096), limits=LIMITS) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for sentence, (fields, param, message) in ROWS.items():
            reply = await client.post(CHAT, json={"messages": USER} | fields)
            error = reply.json().get("error", {})
            if (reply.status_code, error.get("param"), error.get("message")) != (400, param, message):
                wrong[sentence] = (reply.status_code, error)
    assert wrong == {}

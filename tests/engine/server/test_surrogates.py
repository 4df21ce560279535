r"""Half a surrogate pair, written as \ud800 in JSON: no text, so nothing can be encoded that holds it.

The body's own parser refuses it. JSON inside a string of the body, and JSON that the model wrote, come later.
"""

from __future__ import annotations

import json
import logging

import pytest

from tests.engine.server.scripted import CHAT, scripted

HALF = r"\ud800"
MARK = "zebra"
"""Part of every hostile text here: it must not get into the log."""


def calling(arguments: str) -> dict:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]}


def guided(text: str) -> dict:
    return {"messages": [{"role": "user", "content": "hi"}], "guided_json": text}


ARGUMENTS = "messages.1.tool_calls.0.function.arguments"
REQUESTS = {
    "in a value of a call's arguments": (calling(f'{{"{MARK}": "{HALF}"}}'), ARGUMENTS),
    "in a key of a call's arguments": (calling(f'{{"{MARK}{HALF}": 1}}'), ARGUMENTS),
    "the second half alone": (calling(rf'{{"{MARK}": "\udc00"}}'), ARGUMENTS),
    "both halves in the wrong order": (calling(rf'{{"{MARK}": "\udc00\ud800"}}'), ARGUMENTS),
    "in a key of a schema": (guided(f'{{"properties": {{"{MARK}{HALF}": {{}}}}}}'), "guided_json"),
    "in a pattern": (guided(f'{{"type": "string", "pattern": "{MARK}{HALF}"}}'), "guided_json"),
    "in an enum": (guided(f'{{"enum": ["{MARK}{HALF}"]}}'), "guided_json"),
    "in structured_outputs": (
        {
            "messages": [{"role": "user", "content": "hi"}],
            "structured_outputs": {"json": f'{{"const": "{MARK}{HALF}"}}'},
        },
        "structured_outputs.json",
    ),
}


async def test_a_request_with_one_is_refused_by_field_and_leaves_no_trace_in_the_log(caplog):
    wrong = {}
    async with scripted() as running:
        for sentence, (body, param) in REQUESTS.items():
            reply = await running.client.post(CHAT, json=body)
            error = reply.json().get("error", {})
            if (reply.status_code, error.get("param")) != (400, param):
                wrong[sentence] = (reply.status_code, error)
    assert wrong == {}
    assert MARK not in caplog.text


async def test_a_whole_pair_is_text():
    async with scripted() as running:
        reply = await running.client.post(CHAT, json=calling(r'{"a": "\ud83d\ude00"}') | {"max_tokens": 1})
    assert reply.status_code == 200


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ANSWERS = {
    "in the name of a call": f'<tool_call>{{"name": "{HALF}", "arguments": {{}}}}</tool_call>',
    "in a call whose arguments come first": f'<tool_call>{{"arguments": {{"a": "{HALF}"}}, "name": "f"}}</tool_call>',
    "in an argument": f'<tool_call>{{"name": "f", "arguments": {{"a": "{HALF}"}}}}</tool_call>',
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_with_one_comes_to_its_end(stream, caplog):
    """What is no call stays text, letter by letter; arguments go out as the model wrote them."""
    async with scripted() as running:
        shown = {}
        for sentence, answer in ANSWERS.items():
            reply = await running.say(answer, tools=[TOOL], stream=stream)
            assert reply.status_code == 200, (sentence, reply.text)
            shown[sentence] = _streamed(reply.text) if stream else _whole(reply.json())
        counts = await running.counts()
    assert shown == {
        "in the name of a call": (ANSWERS["in the name of a call"], None),
        "in a call whose arguments come first": (ANSWERS["in a call whose arguments come first"], None),
        "in an argument": ("", f'{{"a": "{HALF}"}}'),
    }
    assert counts == {("default", "bf16", "false", "invalid_json"): 1}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def _whole(answer: dict) -> tuple[str, str | None]:
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls")
    return message["content"] or "", calls[0]["function"]["arguments"] if calls else None


def _streamed(text: str) -> tuple[str, str | None]:
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    return "".join(delta.get("content") or "" for delta in deltas), "".join(calls) if calls else None

"""Tools over HTTP: exact shapes, whole and streamed, and what the model is told."""

from __future__ import annotations

import json

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, echo_prompt, running_server, say
from pagefleet_engine.testing import ByteTokenizer
from tests.engine.server.scripted import CHAT, scripted
from tests.engine.server.test_chat import events

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Look outside.", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ASK = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER, TIME]}


async def answer(text: str, **fields) -> httpx.Response:
    engine = FakeEngine(say(text), max_model_len=8192)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post(CHAT, json=ASK | fields)
    assert reply.status_code == 200, reply.text
    return reply


async def test_a_call_whole():
    [choice] = (await answer(CALL)).json()["choices"]
    message = choice["message"]
    assert message["tool_calls"][0].pop("id").startswith("call_")
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}],
    }
    assert choice["finish_reason"] == "tool_calls"


async def test_a_call_streamed():
    got = [event["choices"][0] for event in events((await answer("Well.\n" + CALL, stream=True)).text)]
    deltas = [choice["delta"] for choice in got]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0].pop("id").startswith("call_")
    assert calls[0] == {"index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in calls[1:])
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert [choice["finish_reason"] for choice in got if choice["finish_reason"]] == ["tool_calls"]
    assert all("content" not in delta for delta in deltas if "tool_calls" in delta)


async def test_two_calls_have_their_own_ids_and_indexes():
    [choice] = (await answer(CALL + CALL)).json()["choices"]
    calls = choice["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    got = [event["choices"][0]["delta"] for event in events((await answer(CALL + CALL, stream=True)).text)]
    assert {call["index"] for delta in got for call in delta.get("tool_calls", [])} == {0, 1}


async def test_only_one_call_where_the_client_wants_one():
    [choice] = (await answer(CALL + CALL, parallel_tool_calls=False)).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


async def test_a_call_that_is_cut_off_says_so():
    [choice] = (await answer(CALL, max_tokens=59)).json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Pari'}
    assert choice["finish_reason"] == "length"


async def test_text_stays_text():
    [choice] = (await answer("It rains.\n")).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It rains.\n", "stop")
    assert "tool_calls" not in choice["message"]


async def test_with_tool_choice_none_a_call_is_text():
    [choice] = (await answer(CALL, tool_choice="none")).json()["choices"]
    assert choice["message"]["content"] == CALL


async def prompt_of(messages, **fields) -> str:
    engine = FakeEngine(echo_prompt, max_model_len=8192)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post(CHAT, json={"messages": messages, "max_tokens": 1} | fields)
    assert reply.status_code == 200, reply.text
    return ByteTokenizer().decode(engine.prompts[0])


TOLD = """You can call these functions:
{"name": "time"}
To call one, answer in this form:
<tool_call>
{"name": "the function", "arguments": {"parameter": "value"}}
</tool_call>"""


async def test_a_model_whose_template_knows_no_tools_is_told_of_them():
    user = {"role": "user", "content": "hi"}
    assert await prompt_of([user], tools=[TIME]) == f"system: {TOLD}\nuser: hi\nassistant: "
    system = {"role": "system", "content": "Be kind."}
    told = await prompt_of([system, user], tools=[TIME], tool_choice="required")
    assert told == f"system: Be kind.\n\n{TOLD}\nYou must call time now.\nuser: hi\nassistant: "
    assert await prompt_of([user], tools=[TIME], tool_choice="none") == "user: hi\nassistant: "


DIALOGUE = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
]


async def test_calls_and_results_of_the_dialogue_become_text():
    assert await prompt_of(DIALOGUE) == (
        f"user: Weather?\nassistant: {CALL}\nuser: <tool_response>\nrain\n</tool_response>\nassistant: "
    )


async def test_a_call_without_arguments_is_one_with_none():
    call = {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": ""}}
    asked = [{"role": "user", "content": "Time?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    empty = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    assert await prompt_of(asked) == f"user: Time?\nassistant: {empty}\nassistant: "


TOKENISED = {
    "no tools": {},
    "tools": {"tools": [WEATHER, TIME]},
    "tools that may not be called": {"tools": [TIME], "tool_choice": "none"},
    "a tool that has to be called": {"tools": [TIME], "tool_choice": "required"},
    "without the beginning of an answer": {"tools": [TIME], "add_generation_prompt": False},
}


@pytest.mark.parametrize("fields", TOKENISED.values(), ids=TOKENISED.keys())
async def test_tokenize_counts_what_a_chat_would_have_as_its_prompt(fields):
    engine = FakeEngine(echo_prompt, max_model_len=8192)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post(CHAT, json={"messages": DIALOGUE, "max_tokens": 1} | fields)
        reply = (await client.post("/tokenize", json={"messages": DIALOGUE} | fields)).json()
        assert (reply["count"], tuple(reply["tokens"])) == (len(engine.prompts[0]), engine.prompts[0])
        special = {"messages": DIALOGUE, "add_special_tokens": True} | fields
        assert (await client.post("/tokenize", json=special)).json()["tokens"] == [256, *reply["tokens"]]


NOT_TOKENISED = {
    "tools with a prompt": (
        {"prompt": "a", "tools": [TIME]},
        "tools: only with messages: a prompt is tokenised as it is",
    ),
    "a tool without a name": (
        {"messages": DIALOGUE, "tools": [{"type": "function", "function": {}}]},
        "tools.0.function.name: must be 1 to 64 letters, digits, '_', '-' or '.'",
    ),
    "an unknown tool that has to be called": (
        {"messages": DIALOGUE, "tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice: there is no tool 'x'",
    ),
    "a message that continues": (
        {"messages": DIALOGUE, "continue_final_message": True},
        "continue_final_message: the last message must be the assistant's, with a text and without calls",
    ),
}


@pytest.mark.parametrize(("body", "message"), NOT_TOKENISED.values(), ids=NOT_TOKENISED.keys())
async def test_tokenize_refuses_what_a_chat_would(client, body, message):
    reply = await client.post("/tokenize", json=body)
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, message)
    assert message.startswith(reply.json()["error"]["param"])


class ToolTokenizer(ByteTokenizer):
    """Its template shows everything that it is given."""

    template_takes_tools = True

    def apply_chat_template(self, messages, *, add_generation_prompt=True, tools=None, variables=None, longest=None):
        return json.dumps({"messages": messages, "tools": tools})


async def test_a_template_that_knows_tools_gets_them_as_they_are():
    engine = FakeEngine(echo_prompt, max_model_len=8192)
    engine.tokenizer = ToolTokenizer()
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post(CHAT, json={"messages": DIALOGUE, "tools": [WEATHER], "max_tokens": 1})
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    assert json.loads(ByteTokenizer().decode(engine.prompts[0])) == {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
        ],
        "tools": [WEATHER],
    }


CHOICES = {
    "required": ("required", {"weather", "time"}),
    "a named one": ({"type": "function", "function": {"name": "time"}}, {"time"}),
}


@pytest.mark.parametrize(("choice", "names"), CHOICES.values(), ids=CHOICES.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_that_is_asked_for_comes_whatever_the_model_wants(choice, names, stream):
    async with scripted() as running:
        reply = await running.say(
            "No, thanks.", tools=[WEATHER, TIME], tool_choice=choice, stream=stream, max_tokens=150
        )
        assert reply.status_code == 200, reply.text
        if stream:
            deltas = [event["choices"][0]["delta"] for event in events(reply.text)]
            pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
            found = {piece["name"] for piece in pieces if "name" in piece}
        else:
            [choice] = reply.json()["choices"]
            found = {call["function"]["name"] for call in choice["message"]["tool_calls"]}
            assert choice["message"]["content"] is None
        assert found
        assert found <= names


async def test_at_most_one_call_is_made_where_the_client_wants_one():
    async with scripted(noise=3.0) as running:
        fields = {"tools": [TIME], "tool_choice": "required", "parallel_tool_calls": False}
        [choice] = (await running.say('<tool_call>\n{"name": "time", "arguments": {}}', **fields)).json()["choices"]
        assert len(choice["message"]["tool_calls"]) == 1
        assert (await running.counts())["default", "bf16", "true", "valid"] == 1

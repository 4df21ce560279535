"""`/v1/chat/completions`: exact shapes, whole and streamed, over a real socket."""

from __future__ import annotations

import json

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, echo_prompt, running_server
from tests.engine.server.scripted import scripted

ASK = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
PROMPT_TOKENS = len("user: hi\nassistant: ")


def events(text: str) -> list:
    """Parsed events of a stream; the last one must be [DONE]."""
    lines = text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_whole_answer(client):
    reply = (await client.post("/v1/chat/completions", json=ASK)).json()
    assert reply.pop("id").startswith("chatcmpl-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": 12,
            "total_tokens": PROMPT_TOKENS + 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_stream_begins_with_the_role_and_ends_with_the_reason(client):
    reply = await client.post("/v1/chat/completions", json=ASK | {"stream": True, "max_tokens": 3})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    got = events(reply.text)
    assert {event["object"] for event in got} == {"chat.completion.chunk"}
    assert len({event["id"] for event in got}) == 1
    assert [event["choices"] for event in got] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "H"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "e"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "l"}, "logprobs": None, "finish_reason": "length"}],
    ]
    assert all("usage" not in event for event in got)


async def test_usage_comes_last_and_only_when_asked_for(client):
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    got = events((await client.post("/v1/chat/completions", json=ASK | asked)).text)
    assert [event["usage"] for event in got[:-1]] == [None] * (len(got) - 1)
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 12


async def test_continuous_usage_counts_up(client):
    asked = {"stream": True, "max_tokens": 2, "stream_options": {"continuous_usage_stats": True}}
    got = events((await client.post("/v1/chat/completions", json=ASK | asked)).text)
    assert [event["usage"]["completion_tokens"] for event in got] == [0, 1, 2]


async def test_a_stop_string_never_shows_in_a_stream(client):
    got = events((await client.post("/v1/chat/completions", json=ASK | {"stream": True, "stop": "o, w"})).text)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in got) == "Hell"
    assert got[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "o, w",
    }


STOP_TOKENS = {
    "one of the client's": ({"stop_token_ids": [ord("o")]}, "Hell", ord("o")),
    "the end of the sequence": ({"stop_token_ids": [ord("z")]}, "Hello", None),
    "a stop string that comes first": ({"stop_token_ids": [ord("o")], "stop": "el"}, "H", "el"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_stop_token_that_ended_an_answer_is_told(stream):
    async with scripted() as running:
        found = {}
        for sentence, (fields, _, _) in STOP_TOKENS.items():
            reply = await running.say("Hello", stream=stream, **fields)
            if stream:
                choices = [event["choices"][0] for event in events(reply.text)]
                text = "".join(choice["delta"].get("content", "") for choice in choices)
                found[sentence] = (text, choices[-1].get("stop_reason"))
            else:
                [choice] = reply.json()["choices"]
                found[sentence] = (choice["message"]["content"], choice["stop_reason"])
    assert found == {sentence: (text, reason) for sentence, (_, text, reason) in STOP_TOKENS.items()}


async def test_log_probabilities(client):
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 1}
    reply = (await client.post("/v1/chat/completions", json=ASK | asked)).json()
    assert reply["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H",
                "logprob": -0.5,
                "bytes": [72],
                "top_logprobs": [
                    {"token": "H", "logprob": -0.5, "bytes": [72]},
                    {"token": "I", "logprob": -1.0, "bytes": [73]},
                ],
            }
        ]
    }


async def test_parts_of_text_become_one_content():
    async with running_server(FakeEngine(echo_prompt)) as server, httpx.AsyncClient(base_url=server.url) as client:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "é"}]
        messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
        reply = (await client.post("/v1/chat/completions", json={"messages": messages})).json()
    assert reply["choices"][0]["message"]["content"] == "system: x\nuser: a\né\nassistant: "


async def test_choices_differ_by_seed_alone():
    engine = FakeEngine(echo_prompt)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = (await client.post("/v1/chat/completions", json=ASK | {"n": 3, "seed": 2**63 - 2})).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [sampling.seed for sampling in engine.sampling] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert reply["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert reply["usage"]["completion_tokens"] == 3 * PROMPT_TOKENS


async def test_the_answer_may_fill_the_context():
    engine = FakeEngine(echo_prompt, max_model_len=64)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post("/v1/chat/completions", json=ASK)
    assert engine.sampling[0].max_tokens == 64 - PROMPT_TOKENS


async def test_an_error_of_the_engine_in_a_stream_is_an_event():
    engine = FakeEngine(echo_prompt)
    engine.error = "NaN in the logits"
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post("/v1/chat/completions", json=ASK | {"stream": True})
    assert reply.status_code == 200
    assert events(reply.text)[-1] == {
        "error": {
            "message": "the engine failed on this request: NaN in the logits",
            "type": "internal_error",
            "param": None,
            "code": "internal_error",
        }
    }

"""The names of requests, and the tokens of prompts and answers as numbers."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT
from tests.engine.server.test_chat import events

PLAIN = "/v1/completions"
USER = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT_IDS = list(b"user: hi\nassistant: ")

NAMED = {
    "by the body": ({"request_id": "a.b_c:d-1"}, {}, "a.b_c:d-1"),
    "by the header": ({}, {"x-request-id": "from-a-gateway"}, "from-a-gateway"),
    "by both: the body counts": ({"request_id": "mine"}, {"x-request-id": "from-a-gateway"}, "mine"),
}


@pytest.mark.parametrize(("path", "ask", "kind"), [(CHAT, USER, "chatcmpl"), (PLAIN, {"prompt": "a"}, "cmpl")])
async def test_a_client_may_name_its_request(client, path, ask, kind):
    found = {}
    for sentence, (fields, headers, _) in NAMED.items():
        found[sentence] = (await client.post(path, json=ask | fields, headers=headers)).json()["id"]
    assert found == {sentence: f"{kind}-{name}" for sentence, (_, _, name) in NAMED.items()}
    odd = (await client.post(path, json=ask, headers={"x-request-id": "a b"})).json()["id"]
    assert len(odd) == len(kind) + 1 + 32


@pytest.mark.parametrize("name", ["", "a b", "a" * 129, "a\n", "é"])
async def test_a_name_that_is_none_is_refused(client, name):
    error = (await client.post(CHAT, json=USER | {"request_id": name})).json()["error"]
    message = "request_id: must be 1 to 128 letters, digits, '.', '_', ':' or '-'"
    assert (error["param"], error["message"]) == ("request_id", message)


async def test_requests_of_one_name_are_still_two():
    """The engine's own names are nobody's to choose."""
    gate = asyncio.Semaphore(0)
    engine = FakeEngine(say("ab"), gate=gate)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        asked = [client.post(PLAIN, json={"prompt": "a", "n": 2, "request_id": "same"}) for _ in range(2)]
        replies = [asyncio.create_task(coroutine) for coroutine in asked]
        await engine.until(lambda: len(engine.running) == 4)
        for _ in range(12):
            gate.release()
        answers = [reply.json() for reply in await asyncio.gather(*replies)]
    assert [answer["id"] for answer in answers] == ["cmpl-same"] * 2
    assert [[choice["text"] for choice in answer["choices"]] for answer in answers] == [["ab", "ab"]] * 2


async def test_tokens_of_a_chat(client):
    asked = USER | {"return_token_ids": True, "n": 2}
    whole = (await client.post(CHAT, json=asked)).json()
    assert whole["prompt_token_ids"] == PROMPT_IDS
    assert [bytes(choice["token_ids"]) for choice in whole["choices"]] == [b"Hello, world"] * 2

    got = events((await client.post(CHAT, json=asked | {"stream": True})).text)
    assert [event.get("prompt_token_ids") for event in got] == [PROMPT_IDS, *[None] * (len(got) - 1)]
    for index in range(2):
        choices = [event["choices"][0] for event in got if event["choices"][0]["index"] == index]
        assert bytes(token for choice in choices for token in choice["token_ids"]) == b"Hello, world"


async def test_tokens_of_a_completion(client):
    asked = {"prompt": ["ab", "c"], "return_token_ids": True, "add_special_tokens": False, "stop": "o, w"}
    whole = (await client.post(PLAIN, json=asked)).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in whole] == [[97, 98], [99]]
    assert [bytes(choice["token_ids"]) for choice in whole] == [b"Hello, w"] * 2

    got = [event["choices"][0] for event in events((await client.post(PLAIN, json=asked | {"stream": True})).text)]
    for index, prompt in enumerate([[97, 98], [99]]):
        choices = [choice for choice in got if choice["index"] == index]
        assert [choice.get("prompt_token_ids") for choice in choices] == [prompt, *[None] * (len(choices) - 1)]
        assert bytes(token for choice in choices for token in choice["token_ids"]) == b"Hello, w"
        assert "".join(choice["text"] for choice in choices) == "Hell"


async def test_nobody_gets_them_unasked(client):
    for path, ask in ((CHAT, USER), (PLAIN, {"prompt": "a"})):
        assert "token_ids" not in (await client.post(path, json=ask)).text
        assert "token_ids" not in (await client.post(path, json=ask | {"stream": True})).text

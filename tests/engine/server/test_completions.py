"""`/v1/completions`, `/tokenize`, `/detokenize` and `/v1/models`, over a real socket."""

from __future__ import annotations

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, echo_prompt, running_server, say

BOS = 256


@pytest.fixture
async def echoing():
    """A model that repeats its prompt."""
    async with running_server(FakeEngine(echo_prompt)) as server, httpx.AsyncClient(base_url=server.url) as client:
        yield client


async def test_whole_answer(client):
    reply = (
        await client.post("/v1/completions", json={"model": "fake", "prompt": "ab", "logprobs": 1, "max_tokens": 2})
    ).json()
    assert reply.pop("id").startswith("cmpl-")
    del reply["created"]
    assert reply == {
        "object": "text_completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "text": "He",
                "logprobs": {
                    "tokens": ["H", "e"],
                    "token_logprobs": [-0.5, -0.5],
                    "top_logprobs": [{"H": -0.5}, {"e": -0.5}],
                    "text_offset": [0, 1],
                },
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


# sentence → (prompt, texts of the choices)
PROMPTS = {
    "a string": ("ab", ["ab"]),
    "a list of strings": (["ab", "c"], ["ab", "c"]),
    "token ids": ([97, 98], ["ab"]),
    "a list of token id lists": ([[97], [98, 99]], ["a", "bc"]),
    "strings and token ids in one list": (["ab", [99]], ["ab", "c"]),
}


@pytest.mark.parametrize(("prompt", "want"), PROMPTS.values(), ids=PROMPTS.keys())
async def test_prompts(echoing, prompt, want):
    reply = (await echoing.post("/v1/completions", json={"prompt": prompt})).json()
    assert [choice["text"] for choice in reply["choices"]] == want
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(want)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_echo_puts_the_prompt_first(client, stream):
    reply = await client.post(
        "/v1/completions", json={"prompt": "ab ", "echo": True, "max_tokens": 2, "stream": stream}
    )
    if not stream:
        assert reply.json()["choices"][0]["text"] == "ab He"
        return
    assert [line for line in reply.text.split("\n\n") if '"text":"ab "' in line]


async def test_default_length_is_openai_s():
    async with running_server(FakeEngine(say("x" * 99))) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = (await client.post("/v1/completions", json={"prompt": "a"})).json()
    assert (reply["choices"][0]["text"], reply["choices"][0]["finish_reason"]) == ("x" * 16, "length")


async def test_null_is_as_good_as_absent(client):
    names = "max_tokens temperature top_p top_k n stop logprobs logit_bias seed tools suffix stream stream_options user"
    reply = await client.post("/v1/completions", json={"prompt": "a"} | dict.fromkeys(names.split()))
    assert reply.status_code == 200


async def test_unknown_fields_are_ignored(client):
    assert (await client.post("/v1/completions", json={"prompt": "a", "store": True, "x": [1]})).status_code == 200


async def test_tokenize_and_back(client):
    reply = await client.post("/tokenize", json={"prompt": "aé", "return_token_strs": True})
    assert reply.json() == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [BOS, 97, 195, 169],
        "token_strs": ["<256>", "a", "\ufffd", "\ufffd"],
    }
    assert (await client.post("/detokenize", json={"tokens": [97, 195, 169]})).json() == {"prompt": "aé"}


async def test_tokenize_messages(client):
    reply = await client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})
    assert bytes(reply.json()["tokens"]) == b"user: x\nassistant: "


async def test_models(client, hello):
    want = {
        "id": "fake",
        "object": "model",
        "created": hello.service.started_at,
        "owned_by": "pagefleet",
        "root": "fake",
        "parent": None,
        "max_model_len": 512,
    }
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [want]}
    assert (await client.get("/v1/models/fake")).json() == want

"""The `openai` client, unmodified, against the running server."""

from __future__ import annotations

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]


async def test_chat(openai_client):
    reply = await openai_client.chat.completions.create(model="fake", messages=MESSAGES, logprobs=True, top_logprobs=1)
    assert reply.choices[0].message.content == "Hello, world"
    assert reply.choices[0].logprobs.content[0].token == "H"
    assert reply.usage.completion_tokens == 12


async def test_chat_stream(openai_client):
    stream = await openai_client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello, world"
    assert chunks[-1].usage.completion_tokens == 12


async def test_completion(openai_client):
    reply = await openai_client.completions.create(model="fake", prompt=["a", "b"], n=2, stop=["wor"])
    assert [choice.text for choice in reply.choices] == ["Hello, "] * 4


async def test_models(openai_client):
    assert [model.id async for model in openai_client.models.list()] == ["fake"]


async def test_errors_arrive_as_the_client_s_own(openai_client):
    with pytest.raises(openai.NotFoundError) as missing:
        await openai_client.chat.completions.create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await openai_client.chat.completions.create(model="fake", messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"

"""The `openai` client, unmodified, with tools and with pydantic models: on a scripted model, and on SmolLM2."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from pagefleet_engine.async_engine import start_engine
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.server.testing import running_server
from pagefleet_engine.testing import smollm2_file
from tests.engine.server.scripted import VALIDATING, ask, scripted


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    districts: int = Field(ge=1, le=99)
    twin: City | None


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture
async def running():
    async with scripted() as running:
        yield running


@pytest.fixture
async def client(running):
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_parse_gives_the_pydantic_model(client):
    said = '{"name": "Rome", "districts": 22, "twin": {"name": "Paris", "districts": 20, "twin": null}}'
    reply = await client.chat.completions.parse(
        model="scripted", messages=ask(said), response_format=City, temperature=0
    )
    assert reply.choices[0].message.parsed == City(
        name="Rome", districts=22, twin=City(name="Paris", districts=20, twin=None)
    )


async def test_parse_gives_it_even_where_the_model_would_say_something_else(client):
    reply = await client.chat.completions.parse(
        model="scripted", messages=ask("I don't know."), response_format=City, temperature=0, seed=1
    )
    assert isinstance(reply.choices[0].message.parsed, City)


async def test_parse_stream(client):
    said = '{"name": "Rome", "districts": 22, "twin": null}'
    async with client.chat.completions.stream(
        model="scripted", messages=ask(said), response_format=City, temperature=0
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == City(name="Rome", districts=22, twin=None)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "unit": "celsius"}}\n</tool_call>'


async def test_a_round_with_a_tool(client):
    messages = ask(CALL)
    reply = await client.chat.completions.create(
        model="scripted", messages=messages, tools=[WEATHER], tool_choice="auto", temperature=0
    )
    [choice] = reply.choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"city": "Rome", "unit": "celsius"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "22 degrees"}
    again = [*messages, choice.message, result, *ask("It is 22 degrees.")]
    reply = await client.chat.completions.create(model="scripted", messages=again, tools=[WEATHER], temperature=0)
    assert reply.choices[0].message.content == "It is 22 degrees."


async def test_a_tool_streamed(client):
    async with client.chat.completions.stream(
        model="scripted", messages=ask(CALL), tools=[WEATHER], tool_choice="required", temperature=0
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == {"city": "Rome", "unit": "celsius"}


async def test_what_vllm_calls_structured_outputs(client):
    reply = await client.completions.create(
        model="scripted", prompt="[[no]]\n", max_tokens=5, extra_body={"structured_outputs": {"choice": ["yes", "nay"]}}
    )
    assert reply.choices[0].text in ("yes", "nay")


async def test_refusals_arrive_as_the_client_s_own(client):
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(
            model=VALIDATING, messages=ask("x"), extra_body={"guided_regex": "(a"}, tools=[WEATHER]
        )
    assert wrong.value.param == "guided_regex"


@pytest.fixture(scope="module")
def smollm2_arguments() -> EngineArguments:
    return EngineArguments(
        model=str(smollm2_file()), max_model_len=1024, max_num_seqs=4, kv_cache_memory_bytes=256 * 2**20
    )


class Capital(BaseModel):
    country: Literal["France", "Italy"]
    capital: Literal["Paris", "Rome"]
    population_in_millions: int = Field(ge=0, le=99)


@pytest.mark.model
async def test_smollm2(smollm2_arguments):
    engine = await start_engine(smollm2_arguments)
    async with (
        running_server(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        model = server.service.served_names[0]
        question = [{"role": "user", "content": "What is the capital of France? Answer as JSON."}]
        parsed = await client.chat.completions.parse(
            model=model, messages=question, response_format=Capital, temperature=0, max_tokens=100
        )
        assert parsed.choices[0].message.parsed.capital == "Paris"
        weather = [{"role": "user", "content": "What is the weather in Paris? Use celsius."}]
        stream = await client.chat.completions.create(
            model=model,
            messages=weather,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=100,
            stream=True,
        )
        pieces = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
        arguments = json.loads("".join(piece.function.arguments for piece in pieces))
        assert arguments == {"city": "Paris", "unit": "celsius"}

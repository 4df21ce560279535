"""`langchain-openai`, unmodified: structured output by schema and by tool, and tools in a chat."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.engine.server.scripted import ask, scripted


class Book(BaseModel):
    """A book."""

    title: str = Field(max_length=30)
    year: int = Field(ge=1000, le=2100)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
async def running():
    async with scripted() as running:
        yield running


@pytest.fixture
def model(running):
    return ChatOpenAI(
        base_url=f"{running.url}/v1", api_key="none", model="scripted", temperature=0, max_retries=0, max_tokens=200
    )


EMMA = '{"title": "Emma", "year": 1815}'
SAID = {
    "json_schema": EMMA,
    "json_mode": EMMA,
    "function_calling": f'<tool_call>\n{{"name": "Book", "arguments": {EMMA}}}\n</tool_call>',
}


@pytest.mark.parametrize("method", SAID)
async def test_with_structured_output(model, running, method):
    book = await model.with_structured_output(Book, method=method).ainvoke(ask(SAID[method]))
    assert book == Book(title="Emma", year=1815)
    assert await running.counts() == {("default", "bf16", "true", "valid"): 1}


async def test_bound_tools(model):
    bound = model.bind_tools([add])
    question = HumanMessage(ask('<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>')[0]["content"])
    called = await bound.ainvoke([question])
    assert isinstance(called, AIMessage)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    last = await bound.ainvoke([question, called, result, HumanMessage(ask("It is 5.")[0]["content"])])
    assert last.content == "It is 5."


async def test_streamed_tools(model):
    question = ask('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>')
    whole = None
    async for chunk in model.bind_tools([add], tool_choice="required").astream(question):
        whole = chunk if whole is None else whole + chunk
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("add", {"a": 2, "b": 3})]

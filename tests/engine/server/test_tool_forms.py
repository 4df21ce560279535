"""Forms of tool calls: which one a model gets, its grammar over special tokens, and each over HTTP with `openai`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, echo_prompt, running_server
from pagefleet_engine.server.tool_parser_choice import choose_form
from pagefleet_engine.server.tool_parser_mistral import MistralForm
from pagefleet_engine.testing import ByteTokenizer
from tests.engine.server.scripted import CHAT, ask, scripted


class MarkedTokenizer(ByteTokenizer):
    """Some texts are one token, and its template holds this source. Tokens 258 and 259 are special."""

    def __init__(self, source: str = "", tokens: Mapping[str, int] | None = None) -> None:
        self.template_source = source
        self._tokens = dict(tokens or {})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [256] if add_special_tokens else []
        parts = re.split("(" + "|".join(map(re.escape, self._tokens)) + ")", text) if self._tokens else [text]
        for part in parts:
            ids += [self._tokens[part]] if part in self._tokens else part.encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        texts = {token: text.encode() for text, token in self._tokens.items()}
        return texts.get(token_id) or super().token_bytes(token_id)


QWEN = "{%- if tools %}...return a json object within <tool_call></tool_call> XML tags{% endif %}"
LLAMA31 = "{%- if builtin_tools %}{{- '<|python_tag|>' + tool_call.name }}{% endif %}"
NEMO = "{{- '[TOOL_CALLS][' }}{%- for tool_call in message.tool_calls %}"
SMALL32 = "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"
PLAIN = "{{ messages }}"
CHOICES = {
    "nothing tells": ("auto", PLAIN, {}, "hermes", False),
    "no template": ("auto", "", {}, "hermes", False),
    "Qwen by its template": ("auto", QWEN, {}, "hermes", False),
    "Llama by its template": ("auto", LLAMA31, {}, "llama3_json", False),
    "Llama 3.2 by its vocabulary": ("auto", PLAIN, {"<|python_tag|>": 258}, "llama3_json", False),
    "Hermes on Llama's vocabulary": ("auto", QWEN, {"<|python_tag|>": 258}, "hermes", False),
    "Mistral with lists": ("auto", NEMO, {"[TOOL_CALLS]": 258}, "mistral", False),
    "Mistral with names": ("auto", SMALL32, {"[TOOL_CALLS]": 258, "[ARGS]": 259}, "mistral", True),
    "Mistral with names by its vocabulary": ("auto", "", {"[TOOL_CALLS]": 258, "[ARGS]": 259}, "mistral", True),
    "a template with lists over a newer vocabulary": ("auto", NEMO, {"[ARGS]": 259}, "mistral", False),
    "asked for, whatever the files say": ("llama3_json", QWEN, {}, "llama3_json", False),
    "Hermes, asked for": ("hermes", NEMO, {"[TOOL_CALLS]": 258}, "hermes", False),
    "Mistral, asked for": ("mistral", QWEN, {}, "mistral", False),
}


@pytest.mark.parametrize(("wanted", "source", "tokens", "name", "is_named"), CHOICES.values(), ids=CHOICES.keys())
def test_the_form_of_a_model(wanted, source, tokens, name, is_named):
    form = choose_form(wanted, MarkedTokenizer(source, tokens))
    assert form.name == name
    assert (isinstance(form, MistralForm) and form.is_named) == is_named
    assert form.shown_ids <= set(tokens.values())


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time", "parameters": CITY}}
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
TWO_CALLS = {
    "hermes": (
        f'<tool_call>\n{{"name": "weather", "arguments": {ROME}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "time", "arguments": {OSLO}}}\n</tool_call>'
    ),
    "llama3_json": f'{{"name": "weather", "parameters": {ROME}}}; {{"name": "time", "parameters": {OSLO}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, {{"name": "time", "arguments": {OSLO}}}]',
}
BROKEN = {
    "hermes": '<tool_call>{"name": "weather"}</tool_call>',
    "llama3_json": '{"name": "weather"}',
    "mistral": '[TOOL_CALLS][{"name": "weather"}]',
}
FORMS = sorted(TWO_CALLS)
ASKED = {"required": "required", "named": {"type": "function", "function": {"name": "time"}}}
IDS = {"hermes": r"call_[0-9a-f]{24}", "llama3_json": r"call_[0-9a-f]{24}", "mistral": r"[A-Za-z0-9]{9}"}


@asynccontextmanager
async def asking(form: str, **options):
    """An `openai` client of a scripted model that writes calls in this form."""
    async with (
        scripted(tool_call_parser=form, **options) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield running, client


@pytest.mark.parametrize("form", FORMS)
async def test_parallel_calls_whole_and_streamed(form):
    async with asking(form) as (running, client):
        request = {"model": "scripted", "messages": ask(TWO_CALLS[form]), "tools": [WEATHER, TIME], "temperature": 0}
        [choice] = (await client.chat.completions.create(**request)).choices
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
        assert (calls, choice.message.content) == ([("weather", ROME), ("time", OSLO)], None)
        assert choice.finish_reason == "tool_calls"
        assert all(re.fullmatch(IDS[form], call.id) for call in choice.message.tool_calls)

        stream = await client.chat.completions.create(**request, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
        pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or ()]
        firsts = [piece for piece in pieces if piece.id is not None]
        assert [(piece.index, piece.type, piece.function.name, piece.function.arguments) for piece in firsts] == [
            (0, "function", "weather", ""),
            (1, "function", "time", ""),
        ]
        joined = ["".join(piece.function.arguments for piece in pieces if piece.index == index) for index in (0, 1)]
        assert joined == [ROME, OSLO]
        assert sum(piece.index == 0 for piece in pieces) > 2, "arguments come in pieces"
        assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]
        assert await running.counts() == {("default", "bf16", "false", "valid"): 2}


@pytest.mark.parametrize("form", FORMS)
async def test_a_malformed_call_is_text_and_a_failure_only_where_one_was_asked_for(form):
    async with asking(form) as (running, _):
        for model, choice in (("scripted", "auto"), ("checked", "required"), ("scripted", "none")):
            reply = await running.say(BROKEN[form], model=model, tools=[WEATHER], tool_choice=choice)
            [got] = reply.json()["choices"]
            assert (got["message"]["content"], got["finish_reason"]) == (BROKEN[form], "stop")
        assert await running.counts() == {("checked", "bf16", "false", "invalid_json"): 1}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("form", FORMS)
async def test_a_call_that_is_asked_for_comes_in_the_model_s_own_form(form, asked):
    """The model errs; the grammar holds it. What the engine held it to, it reads again."""
    async with asking(form, noise=3.0, seed=1) as (running, client):
        final = await client.chat.completions.create(
            model="scripted",
            messages=ask("No, thanks."),
            tools=[WEATHER, TIME],
            tool_choice=ASKED[asked],
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=200,
        )
        [call] = final.choices[0].message.tool_calls
        assert call.function.name in ({"time"} if asked == "named" else {"time", "weather"})
        assert isinstance(json.loads(call.function.arguments)["city"], str)
        assert final.choices[0].message.content is None
        assert await running.counts() == {("default", "bf16", "true", "valid"): 1}


@pytest.mark.parametrize("form", FORMS)
async def test_the_model_s_own_answer_fits_the_grammar(form):
    """The grammar takes nothing away from a model that calls as it was trained to, several times in one answer."""
    async with asking(form) as (running, _):
        reply = await running.say(TWO_CALLS[form], tools=[WEATHER, TIME], tool_choice="required")
        calls = reply.json()["choices"][0]["message"]["tool_calls"]
        assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
            ("weather", ROME),
            ("time", OSLO),
        ]


MISTRAL_TOKENS = {"[TOOL_CALLS]": 258, "[ARGS]": 259}


async def test_markers_that_are_special_tokens_are_seen_although_answers_do_not_show_them():
    said = [*b"Well. ", 258, *b"weather", 259, *ROME.encode(), 256, 258, *b"time", 259, *OSLO.encode(), 257]
    engine = FakeEngine(lambda _prompt, _params: said, max_model_len=8192)
    engine.tokenizer = MarkedTokenizer(SMALL32, MISTRAL_TOKENS)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post(CHAT, json={"messages": ask("x"), "tools": [WEATHER, TIME]})
        message = reply.json()["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        assert (message["content"], calls) == ("Well.", [("weather", ROME), ("time", OSLO)])
        reply = await client.post(CHAT, json={"messages": ask("x")})
        assert reply.json()["choices"][0]["message"]["content"] == f"Well. weather{ROME}time{OSLO}"
        assert (await client.get("/version")).json()["tool_call_parser"] == "mistral"


@pytest.mark.parametrize("source", [NEMO, SMALL32], ids=["lists", "names"])
async def test_a_call_that_is_asked_for_is_held_to_special_tokens(source):
    async with asking("auto", tokenizer=MarkedTokenizer(source, MISTRAL_TOKENS)) as (running, client):
        final = await client.chat.completions.create(
            model="scripted",
            messages=ask("No, thanks."),
            tools=[TIME],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            logprobs=True,
            max_tokens=200,
        )
        [choice] = final.choices
        assert [call.function.name for call in choice.message.tool_calls] == ["time"]
        tokens = [entry.token for entry in choice.logprobs.content]
        assert tokens[0] == "[TOOL_CALLS]"
        assert ("[ARGS]" in tokens) == (source is SMALL32)
        assert await running.counts() == {("default", "bf16", "true", "valid"): 1}


TOLD = {
    "llama3_json": '{"name": "the function", "parameters": {"parameter": "value"}}',
    "mistral": '[TOOL_CALLS][{"name": "the function", "arguments": {"parameter": "value"}}]',
}


@pytest.mark.parametrize("form", sorted(TOLD))
async def test_a_model_whose_template_knows_no_tools_is_told_its_own_form(form):
    engine = FakeEngine(echo_prompt, max_model_len=8192)
    service = Service(limits=Limits(), tool_call_parser=form)
    called = {"id": "123456789", "type": "function", "function": {"name": "time", "arguments": '{"city":"Oslo"}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well.", "tool_calls": [called, called]},
        {"role": "tool", "tool_call_id": "123456789", "content": "noon"},
    ]
    async with running_server(engine, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post(CHAT, json={"messages": messages, "tools": [TIME], "max_tokens": 1})
    prompt = ByteTokenizer().decode(engine.prompts[0])
    key = "parameters" if form == "llama3_json" else "arguments"
    call = f'{{"name": "time", "{key}": {{"city": "Oslo"}}}}'
    calls = f"{call}; {call}" if form == "llama3_json" else f"[TOOL_CALLS][{call}, {call}]"
    assert f"To call one, answer in this form:\n{TOLD[form]}\n" in prompt
    assert f"assistant: Well.\n{calls}\nuser: <tool_response>\nnoon\n</tool_response>\nassistant: " in prompt

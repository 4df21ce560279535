"""Inputs that broke other inference servers, by the advisory that tells of them, where no other table has them.

The tables of wrong requests and wrong forms name theirs too, as do `tests/engine/models/test_cve_loading` (files),
`test_dialogue` (templates) and `tests/engine/memory/test_prefix_cache` (keys of frames).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pagefleet_engine.server.schemas import ChatBody, CompletionBody, _Body
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT
from tests.engine.server.tiny import running_tiny_engine

PLAIN = "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


def part(kind: str, value: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": kind, kind: value}]}]}


def regex(pattern: str) -> dict[str, Any]:
    return ASK | {"structured_outputs": {"regex": pattern}}


def parameters(schema: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return ASK | {"tools": [tool], "tool_choice": "required"}


PENALTIES = {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 100, "logit_bias": {"259": -100}}

# advisory: sentence → (path, body, status)
ROWS = {
    "CVE-2026-22773: an image inside the message": (
        CHAT,
        part("image_url", {"url": "data:image/png;base64,AA=="}),
        400,
    ),
    "CVE-2026-22778: a video by address": (CHAT, part("video_url", {"url": "file:///etc/passwd"}), 400),
    "CVE-2025-6242: a sound": (CHAT, part("input_audio", {"data": "AA==", "format": "wav"}), 400),
    "CVE-2025-62164: embeddings in a message": (CHAT, part("image_embeds", "AA=="), 400),
    "CVE-2026-7302: an upload": ("/v1/files", {"file": "../../x"}, 404),
    "CVE-2023-48022: a job": ("/api/jobs/", {"entrypoint": "id"}, 404),
    "CVE-2026-3059: a collective call": ("/collective_rpc", {"method": "x"}, 404),
    "CVE-2026-105756: odd characters in cache_salt": (PLAIN, {"prompt": "a", "cache_salt": "\0\u202eé😀"}, 200),
    "CVE-2026-105756: cache_salt a number": (PLAIN, {"prompt": "a", "cache_salt": 5}, 400),
    "PYSEC-2026-145: every penalty at its bound": (PLAIN, {"prompt": [5, 5], "n": 3} | PENALTIES, 200),
    "PYSEC-2026-4353: content parts of two kinds": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
        400,
    ),
    "CVE-2026-55574: a regular expression that backtracks": (CHAT, regex("(a+)+b"), 200),
    "CVE-2026-55574: a long regular expression": (CHAT, regex("a?" * 3_000), 400),
    "CVE-2025-71379: a text that slows a tool parser": (
        CHAT,
        ASK | {"messages": [{"role": "user", "content": "<tool_call>" * 99}]},
        200,
    ),
    "CVE-2025-48887: a tool's pattern that backtracks": (
        CHAT,
        parameters({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}),
        200,
    ),
    "CVE-2025-48944: a tool's type that is a list of nothing": (CHAT, parameters({"type": []}), 400),
    "CVE-2026-25048: a grammar that refers to itself alone": (CHAT, ASK | {"guided_grammar": "start: start"}, 400),
    "CVE-2025-24357: weights in a request": (PLAIN, {"prompt": "a", "prompt_embeds": "gASVAAAA"}, 400),
    "CVE-2025-66448: code by address": (PLAIN, {"prompt": "a", "lora_path": "https://example.com/x"}, 400),
    "CVE-2026-5760: a template in a request": (CHAT, ASK | {"chat_template": "{{ ''.__class__.__mro__ }}"}, 400),
    "CVE-2026-5760: a template in a template's variable": (
        CHAT,
        ASK | {"chat_template_kwargs": {"x": "{{ ''.__class__.__mro__ }}"}},
        200,
    ),
    "CVE-2025-62426: a variable that is an object": (CHAT, ASK | {"chat_template_kwargs": {"x": {"y": 1}}}, 400),
    "CVE-2025-53630: a number of 4,301 digits": (PLAIN, b'{"prompt": "a", "n": ' + b"9" * 4_301 + b"}", 400),
    "CVE-2024-8939: best_of and n": (PLAIN, {"prompt": "a", "n": 17, "best_of": 2**31}, 400),
}


async def test_each_row():
    """All rows on one connection: an error must not spoil the requests after it."""
    wrong = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        for sentence, (path, body, status) in ROWS.items():
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            reply = await client.post(path, content=content)
            if reply.status_code != status:
                wrong[sentence] = (reply.status_code, reply.text)
        assert (await client.get("/health")).status_code == 200
    assert wrong == {}


@asynccontextmanager
async def caching() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the real engine over a tiny model with a prefix cache."""
    async with (
        running_tiny_engine(enable_prefix_caching=True) as engine,
        running_server(engine) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        yield client


async def cached(client: httpx.AsyncClient, prompt: str, **fields: Any) -> int:
    """Tokens of the prompt that the prefix cache held."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields
    reply = await client.post(PLAIN, json=body)
    assert reply.status_code == 200, reply.text
    found: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


SECRET = "the first tenant's long and secret instructions, " * 2


async def test_cve_2025_46570_a_salt_hides_what_others_have_asked():
    """Without a salt of its own, a prompt that is served faster tells that somebody has sent it."""
    async with caching() as client:
        first = await cached(client, SECRET, cache_salt="one tenant")
        again = await cached(client, SECRET, cache_salt="one tenant")
        other = await cached(client, SECRET, cache_salt="another")
        unsalted = await cached(client, SECRET)
    assert (first, other, unsalted) == (0, 0, 0)
    assert again > 0


async def test_cve_2025_25183_nobody_gets_frames_of_another_prompt():
    """A prompt that differs in its first token alone shares nothing, though all later groups are the same."""
    async with caching() as client:
        await cached(client, "a" * 64)
        assert await cached(client, "b" * 64) == 0
        assert await cached(client, "b" + "a" * 63) == 0
        assert await cached(client, "a" * 64) > 0


BIG = (2**31, 2**63, -(2**63), 10**30, 1e308)
ODD = (True, "7", [], {})
SMALL = (-1, 0)
# What each field takes of the numbers above; every other number, and whatever is no number, gets 400.
SERVED: dict[str, tuple[Any, ...]] = {
    "seed": (-1, 0, 2**31, -(2**63)),
    "min_tokens": (0,),
    "temperature": (0,),
    "presence_penalty": (-1, 0),
    "frequency_penalty": (-1, 0),
    "min_p": (0,),
    "top_k": (-1, 0, 2**31),
    "priority": (-1, 0),
    "prompt_logprobs": (0,),
    "top_logprobs": (0,),
    "logprobs": (0,),
}
KINDS = {CHAT: (ChatBody, ASK), PLAIN: (CompletionBody, {"prompt": "a", "max_tokens": 8})}


def numbers(model: type[_Body]) -> list[str]:
    """Fields whose value is a number."""
    return [name for name, field in model.model_fields.items() if field.annotation in (int | None, float | None)]


@pytest.mark.parametrize("path", KINDS)
async def test_cve_2026_21869_every_number_out_of_its_range_is_named_and_every_other_served(path):
    model, body = KINDS[path]
    found = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        for name in numbers(model):
            for value in (*SMALL, *BIG, *ODD):
                reply = await client.post(path, json=body | {name: value})
                error = reply.json().get("error", {})
                named = error.get("param") == name or error.get("code") == "context_length_exceeded"
                found[name, repr(value)] = (reply.status_code, reply.status_code == 200 or named)
    want = {
        (name, repr(value)): (200 if value in SERVED.get(name, ()) and value is not True else 400, True)
        for name in numbers(model)
        for value in (*SMALL, *BIG, *ODD)
    }
    assert {key: got for key, got in found.items() if got != want[key]} == {}
    assert len(numbers(model)) > 15

"""Inputs that broke other inference servers, by the advisory that tells of them, where no other table has them.

The tables of wrong requests and wrong forms name theirs too, as do those of the model loader and the prefix cache.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pagefleet_engine.server.schemas import ChatBody, CompletionBody, _Body
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from tests.engine.server.scripted import CHAT

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
            reply = await client.post(path, json=body)
            if reply.status_code != status:
                wrong[sentence] = (reply.status_code, reply.text)
        assert (await client.get("/health")).status_code == 200
    assert wrong == {}


HUGE = (-1, 0, 2**31, 2**63, -(2**63), 10**30, 1e308, True, "7", [], {})
KINDS = {CHAT: (ChatBody, ASK), PLAIN: (CompletionBody, {"prompt": "a", "max_tokens": 8})}


def numbers(model: type[_Body]) -> list[str]:
    """Fields whose value is a number."""
    return [name for name, field in model.model_fields.items() if field.annotation in (int | None, float | None)]


@pytest.mark.parametrize("path", KINDS)
async def test_cve_2026_21869_every_number_out_of_its_range_is_served_or_named(path):
    model, body = KINDS[path]
    wrong = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=4096)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        for name in numbers(model):
            for value in HUGE:
                reply = await client.post(path, json=body | {name: value})
                error = reply.json().get("error", {})
                is_named = error.get("param") == name or error.get("code") == "context_length_exceeded"
                if reply.status_code != 200 and (reply.status_code, is_named) != (400, True):
                    wrong[name, str(value)] = (reply.status_code, reply.text)
    assert wrong == {}
    assert len(numbers(model)) > 15

"""Hostile requests as bytes, made from valid ones by a seeded generator. Sends nothing and judges nothing."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.engine.server.hostile_forms import random_form, random_text_form, words
from tests.engine.server.hostile_json import large_body, random_nested

CHAT, PLAIN, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"

LARGE_SHARE = 0.004
"""Of the requests that are some megabytes long."""

CHECKED = "tiny-checked"
"""Model name of a route that validates, and whose requests run in two precisions."""

_POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
_MOVE = {"type": "function", "function": {"name": "move", "description": "go", "parameters": _POINT}}

VALID: Sequence[tuple[str, dict[str, Any]]] = (
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "be"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "max_completion_tokens": 3,
            "temperature": 0.5,
            "top_p": 0.9,
            "n": 1,
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 2,
            "stream": False,
            "seed": 1,
        },
    ),
    (
        PLAIN,
        {
            "model": "tiny",
            "prompt": ["ab", [1, 2]],
            "max_tokens": 3,
            "min_tokens": 1,
            "temperature": 1.0,
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "logit_bias": {"5": 1.0},
            "stop_token_ids": [7],
            "logprobs": 1,
            "echo": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        CHAT,
        {
            "model": CHECKED,
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "call_1", "type": "function", "function": {"name": "move", "arguments": '{"x": 1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "done"},
            ],
            "tools": [_MOVE],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "max_tokens": 4,
        },
    ),
    (
        CHAT,
        {
            "model": CHECKED,
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": _POINT, "strict": True}},
            "max_tokens": 4,
            "n": 2,
            "stream": True,
        },
    ),
    (
        PLAIN,
        {
            "prompt": "ab",
            "structured_outputs": {"choice": ["yes", "no"]},
            "priority": -1,
            "cache_salt": "a",
            "best_of": 2,
            "max_tokens": 4,
        },
    ),
    (
        PLAIN,
        {
            "prompt": ["ab", "cd"],
            "use_beam_search": True,
            "n": 2,
            "beam_width": 3,
            "length_penalty": 1.0,
            "temperature": 0,
            "max_tokens": 3,
        },
    ),
    (
        PLAIN,
        {
            "prompt": ["ab", [97, 195]],
            "echo": True,
            "logprobs": 1,
            "prompt_logprobs": 2,
            "max_tokens": 0,
            "n": 2,
            "stream": False,
        },
    ),
    (PLAIN, {"prompt": "é", "echo": True, "logprobs": 0, "max_tokens": 2, "stream": True}),
    (
        CHAT,
        {
            "messages": [{"role": "user", "content": "hi"}],
            "prompt_logprobs": 1,
            "max_tokens": 1,
            "stream": False,
        },
    ),
    (TOKENIZE, {"prompt": "abc", "add_special_tokens": True, "return_token_strs": True}),
    (TOKENIZE, {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}),
    (
        TOKENIZE,
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "auto",
        },
    ),
    (DETOKENIZE, {"tokens": [97, 98, 255]}),
)

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 16, 17, 64, 259, 260, 261, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.0, -0.0, 0.5, 1e-300, 1e308, -1e308, 1.5),
)
TEXTS: tuple[str, ...] = (
    *(
        "",
        "a",
        "\0",
        "\ufeff",
        "\u202e",
        "é",
        "😀",
        "\r\n",
        "{{ 7*7 }}",
        "{% for x in y %}",
        "<|im_end|>",
        "../../etc/passwd",
    ),
    *("http://169.254.169.254/", "None", "NaN", "-1", "1e400", "a" * 300, "é" * 5_000, "'; DROP TABLE x; --"),
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], [{}], {"": None}, [True], [[[[1]]]])
EXTRA_FIELDS: Sequence[str] = words(
    "tools tool_choice parallel_tool_calls response_format structured_outputs guided_json guided_regex guided_choice",
    "guided_grammar n best_of suffix prompt_embeds prompt_logprobs logits_processors chat_template cache_salt priority",
    "chat_template_kwargs allowed_token_ids bad_words use_beam_search beam_width length_penalty user request_id",
    "ignore_eos skip_special_tokens continue_final_message return_token_ids __class__",
)
LITERALS: tuple[bytes, ...] = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"9" * 5_000,
    b'"\\ud800"',
    b"[" * 300,
    b"tru",
)
TARGETS: tuple[bytes, ...] = (
    *(b"/", b"//", b"/v1", b"/v1/completions/", b"/v1//completions", b"/v1/models/x", b"/v1/models/%00", b"/%2e%2e/x"),
    *(b"/health", b"/ready", b"/metrics", b"/metrics?name[]=x", b"/version", b"/openapi.json", b"/docs", b"/a" * 5_000),
    *(b"*", b"/v1/completions?" + b"a" * 9_000, b"/\xff\xfe", b"http://other/health"),
)
METHODS: tuple[bytes, ...] = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"FOO",
    b"get",
)
HEADERS: tuple[bytes, ...] = (
    *(b"Authorization: Bearer x", b"X-Request-Id: \xff", b"Content-Type: text/plain", b"Content-Encoding: gzip"),
    *(
        b"Range: bytes=0-1",
        b"Expect: 100-continue",
        b"Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"Host: a/b?c",
    ),
    *(b"X-A: " + b"a" * 70_000, b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"X-Forwarded-For: 1"),
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request as bytes, and after how many bytes of the answer its sender hangs up; None reads it all."""

    data: bytes
    hangs_up_after: int | None = None


def hostile_requests(rng: random.Random) -> Iterator[Hostile]:
    """An endless stream; the same seed makes the same one."""
    while True:
        kind = rng.random()
        data = _large(rng) if kind < LARGE_SHARE else _http_noise(rng) if kind < 0.15 else _post(rng)
        yield Hostile(data, rng.choice((0, 1, 100, 300, 1_000)) if rng.random() < 0.1 else None)


def _large(rng: random.Random) -> bytes:
    path = rng.choice((CHAT, PLAIN, TOKENIZE, DETOKENIZE))
    body = large_body(rng)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _post(rng: random.Random) -> bytes:
    path, valid = rng.choice(VALID)
    body: Any = copy.deepcopy(valid)
    if path in (CHAT, PLAIN) and rng.random() < 0.2:
        body |= random_form(rng) if path == CHAT else random_text_form(rng)
    if path == CHAT and rng.random() < 0.1:
        body |= random_nested(rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        body = _mutate(body, rng)
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    if rng.random() < 0.1:
        raw = _damage(raw, rng)
    return message(b"POST", path.encode(), raw, rng)


def _mutate(body: Any, rng: random.Random) -> Any:
    """Change one value, at any depth, or add a field."""
    if rng.random() < 0.2 and isinstance(body, dict):
        return body | {rng.choice(EXTRA_FIELDS): _value(rng)}
    holders = list(_containers(body))
    if not holders:
        return _value(rng)
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if rng.random() < 0.1:
        del holder[key]
    elif rng.random() < 0.1 and isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 20, 300)))
    else:
        holder[key] = _value(rng)
    return body


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list) and value:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)


def _value(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(NUMBERS)
    if kind < 0.7:
        return rng.choice(TEXTS)
    return copy.deepcopy(rng.choice(OTHERS))


def _damage(raw: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(raw) + 1)
    how = rng.random()
    if how < 0.3:
        return raw[:position]
    if how < 0.6:
        return raw[:position] + rng.choice(LITERALS) + raw[position:]
    if how < 0.8:
        return raw[:position] + rng.randbytes(3) + raw[position:]
    return b'{"prompt": ' + rng.choice(LITERALS) + b"}"


def _http_noise(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1, 200)) + b"\r\n\r\n"
    extra = [rng.choice(HEADERS) for _ in range(rng.randrange(3))]
    if rng.random() < 0.05:
        extra += [b"X-%d: a" % i for i in range(rng.choice((90, 101, 500)))]
    body = rng.choice((b"", b"{}", json.dumps(VALID[1][1]).encode()))
    return message(rng.choice(METHODS), rng.choice((*TARGETS, PLAIN.encode())), body, rng, extra)


def message(method: bytes, target: bytes, body: bytes, rng: random.Random, extra: list[bytes] | None = None) -> bytes:
    head = [method + b" " + target + b" HTTP/1.1", b"Host: x", b"Connection: close", *(extra or [])]
    if rng.random() < 0.2:
        pieces = [body[i : i + 50] for i in range(0, len(body), 50)]
        head.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        head.append(b"Content-Length: %d" % len(body))
    kind = b"Content-Type: application/json"
    return b"\r\n".join([*head, kind, b"", b""]) + body

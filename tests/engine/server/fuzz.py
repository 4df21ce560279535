"""Hostile requests, made from valid ones by a seeded generator, and what must hold while they come.

    python -m tests.engine.server.fuzz --requests 100000 --seed 1

Real HTTP over loopback, a real engine with a tiny random model. No answer may be 5xx, every refusal has the error
shape, calm greedy requests beside the noise keep their answers, and afterwards no request and no frame is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import random
import re
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import HOST, RunningServer, running_server
from tests.engine.server.tiny import running_tiny_engine

CHAT, PLAIN, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"

VALID: Mapping[str, dict[str, Any]] = {
    CHAT: {
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
    PLAIN: {
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
    TOKENIZE: {"prompt": "abc", "add_special_tokens": True, "return_token_strs": True},
    DETOKENIZE: {"tokens": [97, 98, 255]},
}

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
EXTRA_FIELDS: tuple[str, ...] = (
    *(
        "tools",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "best_of",
        "suffix",
    ),
    *("prompt_embeds", "prompt_logprobs", "logits_processors", "chat_template", "chat_template_kwargs", "cache_salt"),
    *(
        "allowed_token_ids",
        "bad_words",
        "priority",
        "user",
        "request_id",
        "ignore_eos",
        "skip_special_tokens",
        "__class__",
    ),
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

LEAKS = re.compile(rb"Traceback|site-packages|\.py\b|0x[0-9a-f]{6,}")


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request as bytes, and after how many bytes of the answer its sender hangs up; None reads it all."""

    data: bytes
    hangs_up_after: int | None = None


def hostile_requests(rng: random.Random) -> Iterator[Hostile]:
    """An endless stream; the same seed makes the same one."""
    while True:
        data = _http_noise(rng) if rng.random() < 0.15 else _post(rng)
        yield Hostile(data, rng.choice((0, 1, 100, 300, 1_000)) if rng.random() < 0.1 else None)


def _post(rng: random.Random) -> bytes:
    path = rng.choice(list(VALID))
    body: Any = copy.deepcopy(VALID[path])
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        body = _mutate(body, rng)
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    if rng.random() < 0.1:
        raw = _damage(raw, rng)
    return _message(b"POST", path.encode(), raw, rng)


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
    body = rng.choice((b"", b"{}", json.dumps(VALID[PLAIN]).encode()))
    return _message(rng.choice(METHODS), rng.choice((*TARGETS, PLAIN.encode())), body, rng, extra)


def _message(method: bytes, target: bytes, body: bytes, rng: random.Random, extra: list[bytes] | None = None) -> bytes:
    head = [method + b" " + target + b" HTTP/1.1", b"Host: x", b"Connection: close", *(extra or [])]
    if rng.random() < 0.2:
        pieces = [body[i : i + 50] for i in range(0, len(body), 50)]
        head.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        head.append(b"Content-Length: %d" % len(body))
    kind = b"Content-Type: application/json"
    return b"\r\n".join([*head, kind, b"", b""]) + body


@dataclass(slots=True)
class Findings:
    """What the answers were, and what was wrong with them."""

    statuses: Counter[int | str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    calm_rounds: int = 0

    def look_at(self, request: Hostile, reply: bytes) -> None:
        status, body = _parse(reply)
        self.statuses[status or "closed"] += 1
        problem = problem_of(status, body)
        if problem is not None:
            self.problems.append(f"{problem}\n  sent {request.data[:600]!r}\n  got  {reply[:600]!r}")


def _parse(reply: bytes) -> tuple[int, bytes]:
    head, _, body = reply.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return status, body


def problem_of(status: int, body: bytes) -> str | None:
    if status >= 500:
        return f"status {status}"
    if LEAKS.search(body):
        return "an answer that tells too much"
    if status == 200 and b"data: " in body and b"data: [DONE]\n\n" not in body:
        return "a stream without its end"
    if status >= 400 and body:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return "an error without the shape"
        if error.keys() != {"message", "type", "param", "code"} or not error["message"]:
            return "an error with another shape"
    return None


async def exchange(port: int, request: Hostile) -> bytes:
    """The whole answer; empty when the connection was closed without one or its sender hung up."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request.data)
        await writer.drain()
        if request.hangs_up_after is None:
            return await reader.read()
        if request.hangs_up_after:
            await reader.readexactly(request.hangs_up_after)
        return b""
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""
    finally:
        writer.transport.abort()


CALM = [
    {"prompt": f"calm {i}", "temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 0} for i in range(8)
]


async def calm_answers(port: int) -> list[Any]:
    """Tokens and their log probabilities, bit by bit, of eight greedy requests at once."""

    async def one(body: dict[str, Any]) -> Any:
        message = _message(b"POST", PLAIN.encode(), json.dumps(body).encode(), random.Random(0))
        status, answer = _parse(await exchange(port, Hostile(message)))
        assert status == 200, answer
        return json.loads(answer)["choices"][0]["logprobs"]

    return await asyncio.gather(*(one(body) for body in CALM))


class ErrorLog(logging.Handler):
    """What the server logged as an error: no request may make it do that."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        self._findings.problems.append(f"logged: {self.format(record)}")


async def run(num_requests: int, seed: int, *, concurrency: int = 12) -> Findings:
    """Fire them all; returns what was found. Raises nothing for what a request did."""
    findings = Findings()
    errors = ErrorLog(findings)
    logging.getLogger("pagefleet_engine").addHandler(errors)
    limits = Limits(header_timeout_s=5.0, body_timeout_s=5.0)
    async with (
        running_tiny_engine(batch_invariant=True, max_num_queued=10_000) as engine,
        running_server(engine, limits=limits) as server,
    ):
        before = await calm_answers(server.port)
        rng = random.Random(seed)
        await _fire(server.port, num_requests // 10, rng, concurrency, findings, before)
        warm_mb = _memory_mb()
        await _fire(server.port, num_requests - num_requests // 10, rng, concurrency, findings, before)
        await _check_leftovers(server, findings)
        if await calm_answers(server.port) != before:
            findings.problems.append("calm requests changed")
        if _memory_mb() - warm_mb > 100:
            findings.problems.append(f"memory grew by {_memory_mb() - warm_mb} MB after the first tenth")
    logging.getLogger("pagefleet_engine").removeHandler(errors)
    return findings


async def _fire(
    port: int, num_requests: int, rng: random.Random, concurrency: int, findings: Findings, calm: list[Any]
) -> None:
    requests = iter([request for request, _ in zip(hostile_requests(rng), range(num_requests), strict=False)])

    async def sender() -> None:
        for request in requests:
            reply = await exchange(port, request)
            if request.hangs_up_after is None:
                findings.look_at(request, reply)

    async def listener() -> None:
        while True:
            answers = await calm_answers(port)
            findings.problems.extend(
                f"calm request {i} changed beside hostile ones\n  from {want}\n  to   {got}"
                for i, (want, got) in enumerate(zip(calm, answers, strict=True))
                if want != got
            )
            findings.calm_rounds += 1

    listening = asyncio.create_task(listener())
    await asyncio.gather(*(sender() for _ in range(concurrency)))
    listening.cancel()
    await asyncio.wait({listening})
    if not listening.cancelled():
        findings.problems.append(f"calm requests failed: {listening.exception()!r}")


async def _check_leftovers(server: RunningServer, findings: Findings) -> None:
    service = server.service
    await service.lifecycle.wait_idle()
    for _ in range(100):  # the engine takes note of an abort between two steps
        stats = service.engine.stats()
        if not stats.has_work:
            break
        await asyncio.sleep(0.05)
    left = {state: count for state, count in stats.frames.items() if state in ("open", "in_transfer") and count}
    if stats.has_work or stats.running or stats.waiting or left:
        findings.problems.append(f"left over: {stats}")


def _memory_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    findings = asyncio.run(run(arguments.requests, arguments.seed))
    print(f"{arguments.requests} requests, {findings.calm_rounds} calm rounds beside them: {dict(findings.statuses)}")
    for problem in findings.problems[:20]:
        print(problem)
    return 1 if findings.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

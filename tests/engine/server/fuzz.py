"""Fires hostile requests at the real server, and says what must hold while they come.

    python -m tests.engine.server.fuzz --requests 100000 --seed 1

Real HTTP over loopback, a real engine with a tiny random model. No answer may be 5xx, every refusal has the error
shape, calm greedy requests beside the noise keep their answers, and afterwards no request and no frame is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import HOST, RunningServer, running_server
from tests.engine.server.hostile import PLAIN, Hostile, hostile_requests, message
from tests.engine.server.tiny import running_tiny_engine

LEAKS = re.compile(rb"Traceback|site-packages|\.py\b|0x[0-9a-f]{6,}")


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
        data = message(b"POST", PLAIN.encode(), json.dumps(body).encode(), random.Random(0))
        status, answer = _parse(await exchange(port, Hostile(data)))
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

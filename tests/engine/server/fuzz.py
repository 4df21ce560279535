"""Fires hostile requests at the real server, and says what must hold while they come.

    python -m tests.engine.server.fuzz --requests 100000 --seed 1

Real HTTP over loopback, a real engine with a tiny random model. Every request gets an answer and none a 5xx, refusals
have the error shape, calm greedy requests beside the noise keep their answers, memory stays bounded, and afterwards no
request and no frame is left over. All the while /health has to answer.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import random
import re
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import HOST, RunningServer, running_server
from tests.engine.server.hostile import CHECKED, PLAIN, Hostile, hostile_requests, message
from tests.engine.server.tiny import running_tiny_engine

ROUTES = (
    RouteConfig(name="default", model="tiny", precision=Precision.BF16),
    RouteConfig(
        name="checked",
        model=CHECKED,
        precision=Precision.FP8_E4M3,
        structured="validate",
        control_share=0.5,
        max_context=100,
        allow_demotion=True,
    ),
)
CALM_EVERY = 80
REPORT_EVERY = 1_000
PROBE_EVERY_S = 0.05
LEAKS = re.compile(rb"Traceback|site-packages|\.py\b|0x[0-9a-f]{6,}")


@dataclass(slots=True)
class Findings:
    """What the answers were, and what was wrong with them."""

    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    calm_rounds: int = 0
    num_sent: int = 0
    num_probes: int = 0
    """How often /health was asked, and answered that all is well."""
    memory_mb: tuple[int, int] = (0, 0)
    """Resident, after the first tenth and at the end."""
    report: Callable[[str], None] | None = None

    def count(self) -> None:
        """One more was sent; now and then somebody hears of it."""
        self.num_sent += 1
        if self.report is not None and self.num_sent % REPORT_EVERY == 0:
            statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
            self.report(
                f"{self.num_sent} requests ({statuses}), {self.calm_rounds} calm rounds, {self.num_probes} probes, "
                f"{len(self.problems)} problems, {memory_mb()} MB"
            )

    def look_at(self, request: Hostile, reply: bytes) -> None:
        status, body = _parse(reply)
        self.statuses[status] += 1
        problem = problem_of(status, body)
        if problem is not None:
            self.problems.append(f"{problem}\n  sent {request.data[:600]!r}\n  got  {reply[:600]!r}")


def _parse(reply: bytes) -> tuple[int, bytes]:
    head, _, body = reply.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return status, body


def problem_of(status: int, body: bytes) -> str | None:
    if status == 0:
        return "no answer"
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
    """The answer as far as it came; empty when its sender hung up or the connection was closed without one.

    On the socket itself: asyncio's streams drop what has arrived when a reset follows it, and a server that answers
    before it has read everything resets the connection.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, (HOST, port))
        with suppress(ConnectionError):
            await loop.sock_sendall(connection, request.data)
        return await _received(loop, connection, request.hangs_up_after)


async def _received(loop: asyncio.AbstractEventLoop, connection: socket.socket, most: int | None) -> bytes:
    reply = b""
    while most is None or len(reply) < most:
        try:
            piece = await loop.sock_recv(connection, 65_536)
        except ConnectionError:
            break
        if not piece:
            break
        reply += piece
    return reply


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


async def run(
    num_requests: int, seed: int, *, concurrency: int = 12, report: Callable[[str], None] | None = None
) -> Findings:
    """Fire them all; returns what was found. Raises nothing for what a request did."""
    findings = Findings(report=report)
    errors = ErrorLog(findings)
    logging.getLogger("pagefleet_engine").addHandler(errors)
    service = Service(limits=Limits(header_timeout_s=10.0, body_timeout_s=15.0))
    async with (
        running_tiny_engine(batch_invariant=True, raw_dtype=torch.bfloat16, max_num_queued=10_000) as engine,
        running_server(engine, service=service) as server,
    ):
        service.attach(engine, ROUTES)
        before = await calm_answers(server.port)
        requests = hostile_requests(random.Random(seed))
        await _fire(server.port, islice(requests, num_requests // 10), concurrency, findings, before)
        warm_mb = held_mb()
        await _fire(server.port, islice(requests, num_requests - num_requests // 10), concurrency, findings, before)
        await _check_leftovers(server, findings)
        if await calm_answers(server.port) != before:
            findings.problems.append("calm requests changed")
        findings.memory_mb = (warm_mb, held_mb())
        if findings.memory_mb[1] - warm_mb > 100:
            findings.problems.append(f"memory grew by {findings.memory_mb[1] - warm_mb} MB after the first tenth")
    logging.getLogger("pagefleet_engine").removeHandler(errors)
    return findings


async def _fire(port: int, requests: Iterator[Hostile], concurrency: int, findings: Findings, calm: list[Any]) -> None:
    """A calm round begins with every 80th hostile request, and runs beside those that follow."""
    due = asyncio.Event()

    async def sender() -> None:
        for request in requests:
            reply = await exchange(port, request)
            if request.hangs_up_after is None:
                findings.look_at(request, reply)
            findings.count()
            if findings.num_sent % CALM_EVERY == 0:
                due.set()

    async def listener() -> None:
        while True:
            await due.wait()
            due.clear()
            answers = await calm_answers(port)
            findings.problems.extend(
                f"calm request {i} changed beside hostile ones\n  from {want}\n  to   {got}"
                for i, (want, got) in enumerate(zip(calm, answers, strict=True))
                if want != got
            )
            findings.calm_rounds += 1

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            findings.problems.append(f"what runs beside them failed: {task.exception()!r}")

    beside = [asyncio.create_task(listener()), asyncio.create_task(_probe(port, findings))]
    for task in beside:
        task.add_done_callback(ended)
    await asyncio.gather(*(sender() for _ in range(concurrency)))
    for task in beside:
        task.cancel()
    await asyncio.wait(beside)


async def _probe(port: int, findings: Findings) -> None:
    """Asks /health, again and again, while the others send."""
    while True:
        reply = await exchange(port, Hostile(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
        status, _ = _parse(reply)
        if status == 200:
            findings.num_probes += 1
        else:
            findings.problems.append(f"/health answered {status}: {reply[:200]!r}")
        await asyncio.sleep(PROBE_EVERY_S)


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


def memory_mb() -> int:
    """Resident now: that of the engine, the server and the senders, which are one process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


def held_mb() -> int:
    """Resident when the allocator has given back what nothing holds: large bodies leave it with much of that."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory_mb()


def tell(line: str) -> None:
    """How far it is, beside the result."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    findings = asyncio.run(run(arguments.requests, arguments.seed, report=tell))
    print(f"{arguments.requests} requests, {findings.calm_rounds} calm rounds beside them: {dict(findings.statuses)}")
    print(f"/health answered {findings.num_probes} times meanwhile")
    print("MB resident after the first tenth and at the end: {} and {}".format(*findings.memory_mb))
    for problem in findings.problems[:20]:
        print(problem)
    return 1 if findings.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

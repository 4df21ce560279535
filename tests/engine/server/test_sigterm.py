"""SIGTERM to a real process under load: whoever's request arrived before the grace ended gets the whole answer.

PAGEFLEET_SIGTERMS=20 makes it the long form (`make sigterm-long`).
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.tiny_model import files
from pagefleet_engine.server.testing import HOST, free_port

NUM_RUNS = int(os.environ.get("PAGEFLEET_SIGTERMS", "2"))
NUM_CLIENTS = 8
GRACE_S = 1.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name, content in files().items():
        (folder / name).write_bytes(content)
    return folder


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when its last byte was handed to the kernel, when it ended, and how."""

    sent_at: float
    ended_at: float
    outcome: str


class Client(threading.Thread):
    """Asks again and again until the server does not want it any more; keeps its connection while it may."""

    def __init__(self, port: int, seed: int, answered: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self.asked: list[Asked] = []
        self._rng = random.Random(seed)
        self._answered = answered
        self._connection = http.client.HTTPConnection(HOST, port)

    def run(self) -> None:
        while not self.asked or self.asked[-1].outcome == "complete":
            self.asked.append(self._ask())
            self._answered.release()

    def _ask(self) -> Asked:
        count, stream = self._rng.randint(1, 30), self._rng.random() < 0.5
        body = {"prompt": [5] * 20, "max_tokens": count, "ignore_eos": True, "stream": stream}
        sent_at = None
        try:
            self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            sent_at = time.monotonic()
            reply = self._connection.getresponse()
            outcome = outcome_of(reply.status, reply.read().decode(), count, stream=stream)
        except (OSError, http.client.HTTPException) as error:
            outcome = f"{type(error).__name__}: {error}"
        ended_at = time.monotonic()
        return Asked(ended_at if sent_at is None else sent_at, ended_at, outcome)


def outcome_of(status: int, text: str, count: int, *, stream: bool) -> str:
    if status == 503:
        return str(json.loads(text)["error"]["code"])
    if status != 200:
        return f"{status}: {text}"
    if not stream:
        return "complete" if json.loads(text)["usage"]["completion_tokens"] == count else text
    return "complete" if '"finish_reason":"length"' in text and text.endswith("data: [DONE]\n\n") else text


def until_ready(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        connection = http.client.HTTPConnection(HOST, port)
        try:
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    pytest.fail(f"the engine left with {process.returncode}: {process.stderr.read()}")


def listening(pid: int) -> set[int]:
    """Ports of this process that accept connections, on any address."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            sockets.add(os.readlink(entry))
    rows = [
        row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


@pytest.mark.parametrize("run", range(NUM_RUNS))
def test_no_request_is_lost(model, run):
    port = free_port()
    options = {"--host": HOST, "--port": port, "--max-model-len": 256, "--kv-cache-memory-bytes": 2**22}
    options |= {"--model": model, "--max-num-seqs": NUM_CLIENTS // 2, "--drain-grace": GRACE_S}
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "pagefleet_engine", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until_ready(port, process)
            assert listening(process.pid) == {port}, "CVE-2025-30202: something else listens too"
            answered = threading.Semaphore(0)
            clients = [Client(port, NUM_CLIENTS * run + i, answered) for i in range(NUM_CLIENTS)]
            for client in clients:
                client.start()
            for _ in range(3 * NUM_CLIENTS):
                answered.acquire()
            signalled_at = time.monotonic()
            process.send_signal(signal.SIGTERM)
            for client in clients:
                client.join()
            _, log = process.communicate()
        finally:
            process.kill()
    asked = [request for client in clients for request in client.asked]
    assert [request for request in asked if is_lost(request, signalled_at + GRACE_S)] == []
    assert sum(request.sent_at < signalled_at < request.ended_at for request in asked) > 0
    assert process.returncode == 0, log
    assert "INFO drained" in log


def is_lost(request: Asked, grace_ends_at: float) -> bool:
    """Nobody is refused before the grace has ended; afterwards the listener may be gone."""
    if request.outcome == "complete":
        return False
    if request.outcome == "draining":
        return request.ended_at < grace_ends_at
    return request.sent_at < grace_ends_at or "data: " in request.outcome

"""The real `pagefleet-engine` process on the real weights: an answer, a stream, and SIGTERM in the middle of one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import httpx
import pytest

from pagefleet_engine.server.testing import HOST, free_port
from pagefleet_engine.testing import smollm2_file

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def process():
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pagefleet_engine",
        "--model",
        str(smollm2_file()),
        "--served-model-name",
        "smollm2",
    ]
    options = {"--host": HOST, "--port": port, "--max-model-len": 512, "--kv-cache-memory-bytes": 2**26}
    words = [str(word) for option in {**options, "--drain-grace": 1}.items() for word in option]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as engine:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=120) as client:
            wait_until_ready(client, engine)
            yield engine, client
        engine.kill()


def wait_until_ready(client: httpx.Client, engine: subprocess.Popen) -> None:
    while engine.poll() is None:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"the engine left with {engine.returncode}: {engine.stderr.read()}")


def ask(**fields) -> dict:
    return {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 20} | fields


def test_it_answers_and_ends_in_order(process):
    """One test, because the process can end only once."""
    engine, client = process
    reply = client.post("/v1/chat/completions", json=ask()).json()
    assert reply["choices"][0]["message"]["content"] == ANSWER
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert "vllm:generation_tokens_total" in client.get("/metrics").text
    with client.stream("POST", "/v1/chat/completions", json=ask(stream=True, ignore_eos=True, max_tokens=64)) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        engine.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    chunks = [json.loads(line.removeprefix("data: ")) for line in [first, *rest[:-1]]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text.startswith(ANSWER)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert rest[-1] == "data: [DONE]"
    assert engine.wait(60) == 0

"""The real process on a tiny model: from a hub, from a folder that holds code, and with a pool that is too small."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest

from e2e.tiny_model import files
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.server.testing import HOST, free_port
from pagefleet_engine.startup import build_core
from tests.engine.models.local_hub import Repository, running_hub

WAIT_S = 120
CODE = b"import os, pathlib\npathlib.Path(os.environ['PAGEFLEET_TEST_MARK']).touch()\nclass X: ...\n"


@pytest.fixture(scope="module")
def model():
    """The files of a tiny model whose author wants code of theirs to be run."""
    found = files()
    classes = {"AutoConfig": "modeling_x.X", "AutoModelForCausalLM": "modeling_x.X", "AutoTokenizer": "modeling_x.X"}
    for name in ("config.json", "tokenizer_config.json"):
        found |= {name: json.dumps(json.loads(found[name]) | {"auto_map": classes, "model_type": "x"}).encode()}
    return found | {"modeling_x.py": CODE, "tokenization_x.py": CODE, "__init__.py": CODE, "pytorch_model.bin": CODE}


@pytest.fixture
def folder(model, tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    for name, content in model.items():
        (path / name).write_bytes(content)
    return path


@contextmanager
def engine(*words, **environ):
    """A started process and a client for it; gone afterwards."""
    port = free_port()
    command = [sys.executable, "-m", "pagefleet_engine", "--host", HOST, "--port", str(port), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environ) as process:
        try:
            with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=WAIT_S) as client:
                yield process, client
        finally:
            process.kill()


def refused(*words, **environ):
    """The one line of an engine that cannot start."""
    with engine(*words, **environ) as (process, _):
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    said = [line for line in err.splitlines() if line.startswith("pagefleet-engine: ")]
    assert err.splitlines()[-1:] == said, err
    assert "Traceback" not in err
    return said[0].removeprefix("pagefleet-engine: ")


def wait_until_ready(process, client):
    while process.poll() is None:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail(f"the engine left with {process.returncode}: {process.stderr.read()}")


def test_a_model_by_name_in_the_smallest_pool_that_holds_its_context(model, folder, tmp_path):
    """The pool is the one that the refusal of a smaller one asked for."""
    length = ["--max-model-len", "100"]
    line = refused("--model", str(folder), *length, "--kv-cache-memory-bytes", "1000")
    said = re.fullmatch(
        r"--kv-cache-memory-bytes 1000 holds 0 frames, but one sequence of 100 tokens in bf16 takes 7: "
        r"give (\d+) bytes, or lower --max-model-len",
        line,
    )
    assert said, line
    mark, home = tmp_path / "mark", tmp_path / "home"
    with running_hub(tiny=Repository(files=model, token="t0ken")) as hub:
        environ = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(home),
            "HF_TOKEN": "t0ken",
            "PAGEFLEET_TEST_MARK": str(mark),
        }
        budget = ["--kv-cache-memory-bytes", said[1]]
        with engine("--model", "owner/tiny", *length, *budget, **environ) as (process, client):
            wait_until_ready(process, client)
            assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == ["owner/tiny"]
            ask = {"prompt": [5] * 60, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
            reply = client.post("/v1/completions", json=ask)
            assert (reply.status_code, reply.json()["usage"]["completion_tokens"]) == (200, 40)
            reply = client.post("/v1/completions", json=ask | {"max_tokens": 41})
            assert (reply.status_code, reply.json()["error"]["message"]) == (
                400,
                "the prompt is too long: the maximum context length is 100 tokens, but this request needs "
                "101: 60 in the prompt and 41 for the answer; shorten the prompt or ask for fewer tokens",
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    assert sorted(hub.asked) == sorted(name for name in model if name.endswith((".json", ".safetensors", ".jinja")))
    assert not mark.exists()
    assert not [*home.rglob("*.py"), *home.rglob("*.bin")]


RESOLVE = """
import sys
from pagefleet_engine.errors import StartupError
from pagefleet_engine.weights.resolve import resolve_model
try:
    resolve_model(sys.argv[1])
except StartupError as error:
    sys.exit(str(error))
"""
NO_HUB = {
    "no network": (
        "owner/tiny",
        "0",
        "--model owner/tiny: no such file or folder, and the hub at {hub} cannot be reached (ConnectError), and "
        "{home}/hub does not hold all of owner/tiny: check network, proxy and HF_ENDPOINT, or give a local path",
    ),
    "told to stay offline": (
        "hf://owner/tiny@v1",
        "1",
        "--model hf://owner/tiny@v1: HF_HUB_OFFLINE is set, and {home}/hub does not hold all of owner/tiny: "
        "check network, proxy and HF_ENDPOINT, or give a local path",
    ),
}


@pytest.mark.parametrize(("name", "offline", "want"), NO_HUB.values(), ids=NO_HUB.keys())
def test_a_hub_out_of_reach_is_one_line(tmp_path, name, offline, want):
    hub = f"http://{HOST}:{free_port()}"
    environ = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    words = [sys.executable, "-c", RESOLVE, name]
    ended = subprocess.run(words, capture_output=True, text=True, env=os.environ | environ)
    line = ended.stderr.splitlines()[-1]
    assert (ended.returncode, line) == (1, want.format(hub=hub, home=tmp_path))
    assert "Traceback" not in ended.stderr


def test_code_in_a_model_folder_is_never_run(folder, tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    monkeypatch.setenv("PAGEFLEET_TEST_MARK", str(mark))
    monkeypatch.syspath_prepend(str(folder))
    built = build_core(EngineArguments(model=str(folder), max_model_len=64, kv_cache_memory_bytes=2**20))
    built.core.add(Request(request_id="a", prompt_token_ids=[1, 2], sampling=SamplingParams(max_tokens=2)))
    while built.core.has_work:
        built.core.step()
    assert built.tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "<user>x<assistant>"
    built.core.close()
    assert not mark.exists()

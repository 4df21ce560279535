"""The real process before it serves: told to stop, or started with something that it cannot run with."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagefleet_engine.contract.paths import TERMINATION_MESSAGE_VARIABLE
from pagefleet_engine.server.testing import HOST, free_port

WAIT_S = 60  # for a process that would never end
LOGGED = re.compile(r"\d{4}-\d\d-\d\d \S+ INFO ")


@contextmanager
def engine(*words, environ=None):
    """A started process, gone afterwards."""
    command = [sys.executable, "-m", "pagefleet_engine", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environ or {}))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def catches(process: subprocess.Popen[str], number: int) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what a process catches from /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_before_anything_is_loaded_is_followed_at_once(tmp_path, number):
    with engine("--model", str(tmp_path / "none.gguf"), "--host", HOST, "--port", str(free_port())) as process:
        while not catches(process, signal.SIGTERM):  # the last one to be caught; Python itself catches SIGINT
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")


def test_a_stop_while_the_model_loads_does_not_wait_for_it(tmp_path):
    model = tmp_path / "model.gguf"
    os.mkfifo(model)  # opening it takes for ever
    with engine("--model", str(model), "--host", HOST, "--port", str(free_port())) as process:
        while "loading" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert err.endswith("told to stop while loading\n")


def port_in_use(folder, taken):
    return ["--model", str(folder / "none.gguf"), "--port", str(taken)]


def missing_model(folder, _taken):
    return ["--model", str(folder / "none.gguf"), "--port", str(free_port())]


def truncated_model(folder, _taken):
    path = folder / "cut.gguf"
    path.write_bytes(b"GGUF\3\0\0\0\2\0")
    return ["--model", str(path), "--port", str(free_port())]


def wrong_start_file(folder, _taken):
    path = folder / "start"
    path.write_text('{"routes": [{"name": "tools", "model": "m", "precision": "bf16"}]}')
    return ["--model", str(folder / "none.gguf"), "--port", str(free_port()), "--runtime-config-file", str(path)]


def wrong_state_dir(folder, _taken):
    (folder / "state").write_text("")
    return ["--model", str(folder / "none.gguf"), "--port", str(free_port()), "--state-dir", str(folder / "state")]


def unknown_flag(folder, _taken):
    return ["--model", str(folder / "none.gguf"), "--modell", "x"]


# sentence → (makes the command line, how the line begins, words in it)
WRONG = {
    "a port in use": (port_in_use, "--port ", "Address already in use"),
    "a missing model": (missing_model, "--model ", "none.gguf: no such file or folder"),
    "a truncated model": (truncated_model, "", "cut.gguf: truncated or damaged GGUF file"),
    "a start file without its default": (
        wrong_start_file,
        "--runtime-config-file ",
        "routes.0.name: must be 'default'",
    ),
    "a state folder that is a file": (wrong_state_dir, "--state-dir ", "give a folder that can be written"),
    "an unknown flag": (unknown_flag, "unrecognized arguments: --modell x; ", "see pagefleet-engine --help"),
}


@pytest.mark.parametrize(("command_line", "begin", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_start_is_one_line_for_people_and_for_the_container(tmp_path, command_line, begin, words):
    message = tmp_path / "message"
    with socket.create_server((HOST, 0)) as taken:
        arguments = [*command_line(tmp_path, taken.getsockname()[1]), "--host", HOST]
        with engine(*arguments, environ={TERMINATION_MESSAGE_VARIABLE: str(message)}) as process:
            _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    said = [line for line in err.splitlines() if not LOGGED.match(line)]
    line = said[0].removeprefix("pagefleet-engine: ")
    assert said == [f"pagefleet-engine: {line}"]
    assert line.startswith(begin)
    assert words in line
    assert message.read_text() == line + "\n"

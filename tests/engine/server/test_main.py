"""What a person reads when the engine cannot start: one line, exit code 2, and the same line for the container."""

from __future__ import annotations

import logging
import signal

import pytest

from pagefleet_engine.__main__ import main
from pagefleet_engine.contract.paths import TERMINATION_MESSAGE_VARIABLE
from pagefleet_engine.process import give_up


@pytest.fixture(autouse=True)
def restored_process():
    """`main` takes over logging and signals, as it may in a process of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    on_signal = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    root.handlers[:], root.level = handlers, level
    for number, handler in on_signal.items():
        signal.signal(number, handler)


# sentence → (command line, the line)
WRONG = {
    "no model": ([], "the following arguments are required: --model; see pagefleet-engine --help"),
    "an unknown flag": (
        ["--model", "m", "--modell", "x"],
        "unrecognized arguments: --modell x; see pagefleet-engine --help",
    ),
    "a value that is no number": (
        ["--model", "m", "--port", "http"],
        "argument --port: invalid int value: 'http'; see pagefleet-engine --help",
    ),
    "a value out of range": (["--model", "m", "--max-num-seqs", "0"], "--max-num-seqs 0: must be at least 1"),
}


@pytest.mark.parametrize(("argv", "line"), WRONG.values(), ids=WRONG.keys())
def test_wrong_command_lines(argv, line, capfd, tmp_path, monkeypatch):
    message = tmp_path / "message"
    monkeypatch.setenv(TERMINATION_MESSAGE_VARIABLE, str(message))
    assert main(argv) == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"pagefleet-engine: {line}\n")
    assert message.read_text() == line + "\n"


def test_a_missing_model_is_named_after_the_start_up_log(capfd, tmp_path):
    path = tmp_path / "none.gguf"
    assert main(["--model", str(path), "--host", "127.0.0.1", "--port", "18431"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == f"pagefleet-engine: --model {path}: no such file or folder"
    assert not any(line.startswith("Traceback") for line in lines)


def test_a_message_of_several_lines_becomes_one(capfd):
    assert give_up("first\n  second", {}) == 2
    assert capfd.readouterr().err == "pagefleet-engine: first second\n"


def test_a_message_file_that_cannot_be_written_is_no_second_failure(capfd, tmp_path):
    assert give_up("why", {TERMINATION_MESSAGE_VARIABLE: str(tmp_path / "no" / "folder")}) == 2


def test_version_and_help(capfd):
    assert main(["--version"]) == 0
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capfd.readouterr().out
    assert out.splitlines()[0].count(".") == 2
    assert "--max-num-seqs" in out

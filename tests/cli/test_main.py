"""The command line itself: light to start, one line per error, the same under both names."""

import subprocess
import sys

import pytest

from pagefleet_cli.main import main


def test_the_help_loads_neither_torch_nor_matplotlib():
    code = (
        "import sys; sys.argv = ['pagefleet']\n"
        "from pagefleet_cli.main import main\n"
        "assert main(['bench', 'quality', '--help']) == 0\n"
        "assert not {'torch', 'matplotlib', 'numpy', 'kopf', 'kubernetes'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


WRONG = {
    "no command": ([], "Missing command."),
    "an unknown command": (["explian"], "explian"),
    "an unknown option": (["explain", "--colour"], "--colour"),
    "bench without a measurement": (["bench"], "Missing command."),
    "a precision that does not exist": (["bench", "quality", "--precision", "fp4"], "fp4"),
    "a window below its bound": (["bench", "quality", "--window", "2"], "--window"),
}


@pytest.mark.parametrize(("words", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_command_line_is_one_line_and_code_2(capsys, words, says):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("pagefleet: ")
    assert error.count("\n") == 1
    assert says in error
    assert "--help" in error


REFUSED = {
    "a dtype that does not exist": (["bench", "quality", "--dtype", "half"], "--dtype half: use float32 or bfloat16"),
    "a plot of another kind": (["bench", "quality", "--plot", "x.gif"], "--plot x.gif: the name has to end in"),
    "a text that is not there": (["bench", "quality", "--text", "/nowhere"], "--text /nowhere: No such file"),
    "a reservation below the longest request": (
        ["bench", "engine", "--max-model-len", "2000"],
        "--max-model-len 2000: the longest request has 3400 tokens; give at least that",
    ),
    "a pool below one reservation": (
        ["bench", "engine", "--frames", "256", "--max-model-len", "8192"],
        "--frames 256: one reservation of 8192 tokens takes 512",
    ),
}


@pytest.mark.parametrize(("words", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(capsys, words, says):
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error


def test_a_model_that_is_not_there_is_one_line(capsys):
    assert main(["bench", "engine", "--model", "/nowhere/model.gguf"]) == 1
    assert capsys.readouterr().err == "pagefleet: --model /nowhere/model.gguf: no such file or folder\n"


def test_a_kubectl_plugin_calls_itself_so(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-pagefleet", "explain", "-f", "/nowhere"])
    assert main() == 1
    assert capsys.readouterr().err.startswith("kubectl pagefleet: --file /nowhere")


def test_the_version_is_the_distributions(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.count(".") >= 1

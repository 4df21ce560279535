"""The command itself: it ends by a signal at any moment, even while it still loads."""

import signal
import subprocess
import sys

import pytest

LOADS_FOR_EVER = """
import sys, signal

class Stuck:
    @staticmethod
    def find_spec(name, *_):
        if name == "pagefleet_operator.main":
            print("loading", flush=True)
            while True:
                signal.pause()

sys.meta_path.insert(0, Stuck)
from pagefleet_operator.__main__ import main

sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it_at_once(number):
    process = subprocess.Popen([sys.executable, "-c", LOADS_FOR_EVER], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        assert process.wait() == 0


def test_loading_the_command_loads_nothing_slow():
    code = "import sys, pagefleet_operator.__main__; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"asyncio", "kubernetes", "pydantic", "pagefleet_operator.main"}.isdisjoint(found)


def test_bad_flags_are_refused_in_one_line():
    words = [sys.executable, "-m", "pagefleet_operator", "--workers", "0"]
    found = subprocess.run(words, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (2, "pagefleet-operator: --workers 0: use 1 to 256\n")

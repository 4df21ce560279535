"""A wrong kernel: a copy of the package with one replacement, checked in a process of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pagefleet_kernels


def assert_caught(folder, file, right, wrong, program):
    """The program, which prints "survived" at its end, fails in the copy by an assertion or dies of a wild address."""
    shutil.copytree(Path(pagefleet_kernels.__file__).parent, folder / "pagefleet_kernels")
    mutated = folder / "pagefleet_kernels" / file
    source = mutated.read_text()
    assert right in source, "the mutant no longer applies"
    mutated.write_text(source.replace(right, wrong))
    run = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True)
    assert "survived" not in run.stdout
    assert run.returncode < 0 or "AssertionError" in run.stderr, run.stderr[-1500:]

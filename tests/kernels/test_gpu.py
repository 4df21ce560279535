"""What only a GPU can show: the checks of `make test-gpu`, run as a program of its own, without the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: make test-gpu measures there too"),
]


def test_every_kernel_is_right_on_the_device(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["PYTHONPATH"] = f"{ROOT / 'kernels'}:{ROOT / 'engine'}"
    argv = [sys.executable, str(ROOT / "kernels" / "check_gpu.py"), "--out", str(tmp_path), "--parts", "correctness"]
    found = subprocess.run([*argv, "--deadline", "3600"], env=environ, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads((tmp_path / "check_gpu.json").read_text())
    assert (report["failures"], report["left_out"]) == ([], [])

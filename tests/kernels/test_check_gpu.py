"""The GPU check: its dry run works from start to end, and a failing case does not stop the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import check_gpu
from check_gpu import Report


def test_the_dry_run_checks_and_measures_everything_and_writes_both_files(tmp_path):
    command = [sys.executable, check_gpu.__file__, "--dry-run", "--out", str(tmp_path / "out")]
    kernels = Path(check_gpu.__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{kernels}:{kernels.parent / 'engine'}"}
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    found = json.loads((tmp_path / "out" / "check_gpu.json").read_text())
    assert found["failures"] == []
    sections = ["environment", "correctness", "bandwidth", "tune_decode", "decode", "prefill", "layouts", "transfer"]
    sections += ["model", "flashinfer", "tokens", "engine", "graphs"]
    assert list(found)[: len(sections)] == sections
    assert "| precision | batch | tokens |" in (tmp_path / "out" / "check_gpu.md").read_text()


def test_a_failing_case_is_recorded_and_the_next_one_runs(tmp_path, capsys):
    report = Report(folder=tmp_path, deadline=60.0)

    def fail():
        raise ValueError("no such kernel")

    report.run("decode", "broken", fail)
    report.run("decode", "sound", lambda: {"microseconds": 3})
    report.write()
    found = json.loads((tmp_path / "check_gpu.json").read_text())
    assert found["failures"] == ["decode: broken: ValueError: no such kernel"]
    assert found["decode"] == [{"microseconds": 3}]
    assert "FAILED decode broken" in capsys.readouterr().out


def test_cases_after_the_deadline_are_left_out_by_name(tmp_path):
    report = Report(folder=tmp_path, deadline=-1.0)
    report.run("model", "late", lambda: {"microseconds": 3})
    assert report.failures == ["model: late: left out, the time was up"]

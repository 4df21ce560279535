"""The GPU check: its dry run works from start to end, and a part that hangs costs its own cases only."""

import itertools
import json
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Event

import pytest

import check_gpu
from check_gpu import PARTS, Part, chosen, run_parts, say
from check_report import Report
from check_workers import Outcome
from pagefleet_kernels.bench.case import Case

KERNELS = Path(check_gpu.__file__).parent


def script(*arguments, folder):
    environment = {**os.environ, "PYTHONPATH": f"{KERNELS}:{KERNELS.parent / 'engine'}"}
    command = [sys.executable, check_gpu.__file__, *arguments, "--out", str(folder / "out")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_the_dry_run_checks_and_measures_everything_with_two_workers_and_writes_both_files(tmp_path):
    run = script("--dry-run", "--workers", "2", folder=tmp_path)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    found = json.loads((tmp_path / "out" / "check_gpu.json").read_text())
    assert (found["failures"], found["left_out"]) == ([], [])
    sections = ["environment", "correctness", "tokens", "compile", "bandwidth", "decode", "engine", "graphs", "model"]
    sections += ["transfer", "prefill", "layouts", "flashinfer", "compile_tries", "tune_decode", "tune_prefill"]
    assert list(found)[: len(sections)] == sections
    assert [row["case"].split()[0] for row in found["correctness"]] == [
        *("decode", "prefill", "seal", "write", "copy", "swap", "demote", "rms_norm", "rope", "silu_mul")
    ]
    assert found["tokens"][0]["compared"] == found["tokens"][0]["tokens"] == 120
    assert "| precision | batch | tokens |" in (tmp_path / "out" / "check_gpu.md").read_text()
    logs = sorted(path.name for path in (tmp_path / "out" / "logs").iterdir())
    assert {name.rsplit("-", 1)[0] for name in logs} == {"worker-0", "worker-1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "decode"], "this machine has no NVIDIA GPU that torch can use; try --dry-run"),
        (["--dry-run", "--parts", "decode,speed"], "--parts speed: use all, or some of correctness, decode, engine,"),
    ],
    ids=["no GPU", "an unknown part"],
)
def test_what_cannot_be_done_is_said_in_a_line(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as error:
        check_gpu.options_of(arguments)
    assert error.value.code == 2
    assert said in capsys.readouterr().err


CHOSEN = {
    "the checks alone compile nothing else": (["correctness"], ["correctness"]),
    "a measuring part has its kernels compiled first": (["prefill"], ["compile", "prefill"]),
    "so has tuning": (["tune"], ["compile_tries", "tune"]),
    "the order is that of their worth": (["model", "decode"], ["compile", "decode", "model"]),
    "all": (["all"], [part.name for part in PARTS]),
}


@pytest.mark.parametrize(("names", "expected"), CHOSEN.values(), ids=CHOSEN.keys())
def test_chosen_parts(names, expected):
    assert [part.name for part in chosen(names)] == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_has_a_name_of_its_own_and_can_be_sent_to_a_process(tmp_path, device):
    report = Report(folder=tmp_path)
    for part in PARTS:
        cases = list(part.cases(device))
        sent = [pickle.loads(pickle.dumps(case)) for case in cases]
        assert [case.name for case in sent] == [case.name for case in cases]
        report.expect(cases)
    sections = [section for section, _ in report.outcomes]
    assert sections.count("correctness") == {"cpu": 10, "cuda": 236}[device]
    assert sections.count("decode") == {"cpu": 1, "cuda": 36}[device]


def test_tries_are_no_check_of_correctness():
    parts = {part.name: part for part in PARTS}
    checks = {case.section for case in parts["correctness"].cases("cuda")}
    assert checks == {"tokens", "correctness"}
    tried = {case.section for name in ("compile_tries", "tune") for case in parts[name].cases("cuda")}
    assert tried == {"compile_tries", "tune_decode", "tune_prefill"}


def quick(number):
    return {"number": number}


def hang():
    Event().wait()


def slow_cases(_device):
    return [Case("slow", "hangs", hang, limit_s=1e6), Case("slow", "comes too late", partial(quick, 0))]


def quick_cases(_device):
    return [Case("quick", f"{number}", partial(quick, number)) for number in range(3)]


def test_a_part_that_hangs_costs_its_share_and_the_next_one_runs(tmp_path, capsys):
    report = Report(folder=tmp_path)
    parts = [Part(name="slow", cases=slow_cases, share=0.02), Part(name="quick", cases=quick_cases, share=1.0)]
    run_parts(report, parts, device="no device", workers=2, deadline=100.0)
    say(report)
    found = json.loads((tmp_path / "check_gpu.json").read_text())
    assert found["quick"] == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert found["left_out"][-2:] == ["slow: hangs", "slow: comes too late"]
    assert not report.has_all(["slow"])
    assert report.has_all(["quick"])
    assert "LEFT OUT for lack of time: slow: hangs\n" in capsys.readouterr().out


def test_the_report_keeps_the_order_of_the_cases_and_names_what_failed_and_what_is_missing(tmp_path, capsys):
    report, cases = Report(folder=tmp_path), quick_cases("cpu")
    report.expect(cases)
    report.took(cases[2], Outcome(rows=[{"number": 2}]))
    report.took(cases[1], Outcome(error="ValueError: no such kernel", trace="Traceback: here"))
    report.write()
    found = json.loads((tmp_path / "check_gpu.json").read_text())
    del found["seconds"]
    assert found == {
        "quick": [{"number": 2}],
        "failures": ["quick: 1: ValueError: no such kernel"],
        "left_out": ["quick: 0"],
    }
    said = capsys.readouterr().out
    assert "FAILED ValueError: no such kernel\nTraceback: here\n" in said
    assert "| number |\n| --- |\n| 2 |\n" in (tmp_path / "check_gpu.md").read_text()


def test_two_cases_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two cases are called quick: 0"):
        Report(folder=tmp_path).expect([*quick_cases("cpu"), *itertools.islice(quick_cases("cpu"), 1)])

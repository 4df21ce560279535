"""The processes of the GPU check: a case that hangs, aborts or raises costs its own row and nothing else."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event

import pytest

import check_workers
from check_workers import Crew, Outcome, as_rows, last_words
from pagefleet_kernels.bench.case import Case


def passing(number):
    return {"number": number, "process": os.getpid()}


def hanging():
    Event().wait()


def aborting():
    sys.stderr.write("Assertion `layout` failed\n")
    sys.stderr.flush()
    os.abort()


def leaving():
    os._exit(3)


def raising():
    raise ValueError("no such\nkernel")


def differing():
    raise AssertionError("error 0.5, allowed 0.1")


def run(cases, folder, *, workers=2, batch=3, seconds=120.0):
    found = {}

    def took(case, outcome):
        assert case.name not in found
        found[case.name] = outcome

    with Crew(workers, folder / "logs", batch=batch) as crew:
        crew.run(cases, until=time.monotonic() + seconds, took=took)
    return found


def many(count):
    return [Case("many", f"{number}", partial(passing, number)) for number in range(count)]


def test_a_hang_an_abort_and_an_error_cost_their_own_rows_only(tmp_path):
    bad = {"aborts": aborting, "leaves": leaving, "raises": raising}
    cases = [Case("bad", "hangs", hanging, limit_s=0.2), *many(4)]
    cases += [Case("bad", name, case) for name, case in bad.items()]
    cases += many(12)[4:]
    found = run(cases, tmp_path)
    assert set(found) == {case.name for case in cases}
    assert [found[f"{n}"].rows[0]["number"] for n in range(12)] == list(range(12))
    assert found["hangs"].error == "hung: no result after 0.2 s; its process was killed"
    assert found["aborts"].error.startswith("its process died: SIGABRT: Assertion `layout` failed | Fatal Python error")
    assert found["leaves"].error == "its process died: exit status 3: "
    assert found["raises"].error == "ValueError: no such kernel"


def test_a_process_serves_a_batch_and_no_case_after_an_error_that_may_have_spoilt_it(tmp_path):
    cases = many(5)
    cases.insert(1, Case("bad", "raises", raising))
    found = run(cases, tmp_path, workers=1, batch=2)
    processes = [found[f"{n}"].rows[0]["process"] for n in range(5)]
    groups = [processes.index(process) for process in processes]
    assert groups == [0, 1, 1, 3, 3]


def test_a_failed_comparison_leaves_its_process_at_work(tmp_path):
    found = run([*many(1), Case("bad", "differs", differing), *many(2)[1:]], tmp_path, workers=1)
    assert found["differs"].error == "AssertionError: error 0.5, allowed 0.1"
    assert found["0"].rows[0]["process"] == found["1"].rows[0]["process"]


def test_at_the_deadline_what_runs_is_killed_and_not_reported(tmp_path):
    found = run([*many(2), Case("bad", "hangs", hanging), *many(4)[2:]], tmp_path, workers=1, seconds=1.5)
    assert set(found) <= {"0", "1"}


def test_a_process_that_does_not_come_up_is_given_up(tmp_path):
    found = []
    with Crew(1, tmp_path / "logs", start_limit_s=0.0) as crew:
        crew.run(many(2), until=time.monotonic() + 60, took=lambda _, outcome: found.append(outcome.error))
    assert found == ["hung: not begun after 0 s; its process was killed"] * 2


def test_nothing_starts_after_the_deadline(tmp_path):
    assert run(many(2), tmp_path, seconds=-1.0) == {}


def test_a_process_that_died_between_two_cases_is_replaced(tmp_path):
    found = []
    with Crew(1, tmp_path / "logs") as crew:
        for case in many(2):
            crew.run([case], until=time.monotonic() + 60, took=lambda _, outcome: found.append(outcome))
            os.kill(found[-1].rows[0]["process"], signal.SIGKILL)
            (worker,) = crew._workers
            worker._process.join()
    assert [outcome.error for outcome in found] == [None, None]


def test_a_run_leaves_no_process_behind(tmp_path):
    with Crew(1, tmp_path / "logs") as crew:
        crew.run(many(1), until=time.monotonic() + 60, took=lambda *_: None)
        (worker,) = crew._workers
        process = worker._process
        assert process.is_alive()
    assert not process.is_alive()


def test_results_become_rows():
    assert as_rows("n", 0.12345678) == [{"case": "n", "largest_error": 0.123457}]
    assert as_rows("n", {"a": 1}) == [{"a": 1}]
    assert as_rows("n", [Outcome(seconds=2.0)])[0]["seconds"] == 2.0


WORDS = {
    "an empty log": ("", ""),
    "the last three lines": ("a\nb\n\nc\nd  e\n", "b | c | d e"),
    "around the fatal error": (
        "x\ny\nz\nFatal Python error: Aborted\n\nCurrent thread:\n  File a\n  File b\n  File c\n",
        "y | z | Fatal Python error: Aborted | Current thread: | File a | File b",
    ),
}


@pytest.mark.parametrize(("text", "expected"), WORDS.values(), ids=WORDS.keys())
def test_last_words(tmp_path, text, expected):
    log = tmp_path / "log"
    log.write_text(text)
    assert last_words(log) == expected


def test_workers_import_nothing_heavy():
    code = "import sys, check_workers; assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(check_workers.__file__).parent, check=True)

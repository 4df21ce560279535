"""Whether what a file says still runs: crashes, reboots, and pids that others have got since."""

from __future__ import annotations

import pytest

from e2e.cluster.state import ProcessId, Record, parse_stat, read_record, write_record

SUPERVISOR = ProcessId(pid=100, started_ticks=5000)
HOLDER = ProcessId(pid=101, started_ticks=5001)
RECORD = Record(boot_id="boot-1", supervisor=SUPERVISOR, holder=HOLDER, api_port=16443, programs="/cache/bin/abc")


@pytest.mark.parametrize(
    ("boot_id", "processes", "runs", "living"),
    [
        pytest.param("boot-1", {100: 5000, 101: 5001}, True, [SUPERVISOR, HOLDER], id="both live"),
        pytest.param("boot-1", {101: 5001}, False, [HOLDER], id="the supervisor was killed"),
        pytest.param("boot-1", {100: 5000}, False, [SUPERVISOR], id="the holder was killed"),
        pytest.param("boot-1", {}, False, [], id="everything was killed"),
        pytest.param("boot-1", {100: 9000, 101: 5001}, False, [HOLDER], id="another process got the supervisor's pid"),
        pytest.param("boot-2", {100: 5000, 101: 5001}, False, [], id="the same numbers after a reboot"),
    ],
)
def test_a_record_is_believed_only_while_its_processes_live(boot_id, processes, runs, living):
    assert RECORD.is_running(boot_id, processes.get) is runs
    assert RECORD.living(boot_id, processes.get) == living


@pytest.mark.parametrize(
    ("text", "started"),
    [
        ("42 (a b) (c)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7777 1000 2", 7777),
        ("42 (pause) Z 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7777 1000 2", None),
        ("42 (pause) X 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 7777 1000 2", None),
    ],
)
def test_start_times_are_read_and_zombies_do_not_count(text, started):
    assert parse_stat(text) == started


def test_a_record_is_read_as_it_was_written(tmp_path):
    write_record(tmp_path / "running.json", RECORD)
    assert read_record(tmp_path / "running.json") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["running.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"boot_id": "x"}', '{"supervisor": 1, "holder": 2}'])
def test_a_broken_record_is_none(tmp_path, text):
    (tmp_path / "running.json").write_text(text)
    assert read_record(tmp_path / "running.json") is None


def test_a_missing_record_is_none(tmp_path):
    assert read_record(tmp_path / "running.json") is None

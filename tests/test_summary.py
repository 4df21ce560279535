"""The closing lines of `make test`."""

from __future__ import annotations

from tests.summary import read_reports, render

UNIT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message="x"/></testcase>
<testcase name="c"><error message="y"/></testcase>
<testcase name="d"><skipped message="needs an NVIDIA GPU"/></testcase>
</testsuite></testsuites>"""
E2E = """<testsuites><testsuite><testcase name="e"/><testcase name="f"><skipped message="needs root"/></testcase>
<testcase name="g"><skipped message="needs root"/></testcase></testsuite></testsuites>"""


def test_totals_over_two_reports_with_the_reasons_of_the_skipped(tmp_path):
    (tmp_path / "unit.xml").write_text(UNIT)
    (tmp_path / "e2e.xml").write_text(E2E)
    assert render(read_reports([tmp_path / "unit.xml", tmp_path / "e2e.xml"])) == (
        "skipped 1: needs an NVIDIA GPU\nskipped 2: needs root\n2 passed, 2 failed, 3 skipped"
    )


def test_nothing_skipped_is_said_too(tmp_path):
    (tmp_path / "unit.xml").write_text("<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>")
    assert render(read_reports([tmp_path / "unit.xml"])) == "nothing was skipped\n1 passed, 0 failed, 0 skipped"

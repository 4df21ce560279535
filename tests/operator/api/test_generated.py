"""What follows from the types is in the repository as it would be generated now."""

from __future__ import annotations

from pathlib import Path

import yaml

from pagefleet_operator.api import crd
from pagefleet_operator.api.conditions import ConditionType, Reason
from pagefleet_operator.api.generate import CHART_PATH, CRD_PATH, REFERENCE_PATH, generated_files, main, outdated
from pagefleet_operator.api.reference import attribute_docs

ROOT = Path(__file__).parents[3]


def test_generating_changes_nothing():
    assert outdated(ROOT) == []


def test_generating_twice_gives_the_same():
    assert generated_files() == generated_files()


def test_the_written_crd_is_the_manifest():
    assert yaml.safe_load((ROOT / CRD_PATH).read_text()) == crd.manifest()


def test_check_names_each_file_that_would_change(tmp_path, capsys):
    assert main(["--root", str(tmp_path)]) == 0
    (tmp_path / CRD_PATH).write_text("other")
    (tmp_path / REFERENCE_PATH).unlink()
    capsys.readouterr()
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{CRD_PATH} is not what the types say: run make generate",
        f"{REFERENCE_PATH} is not what the types say: run make generate",
    ]
    assert (tmp_path / CRD_PATH).read_text() == "other"


def test_writing_again_writes_nothing(tmp_path, capsys):
    main(["--root", str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == [f"wrote {path}" for path in (CRD_PATH, CHART_PATH, REFERENCE_PATH)]
    assert main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


def test_every_condition_and_reason_is_documented():
    for enum in (ConditionType, Reason):
        assert set(attribute_docs(enum)) == set(enum.__members__)


def test_the_reference_page_has_a_row_for_every_reason():
    page = (ROOT / REFERENCE_PATH).read_text()
    assert [reason for reason in Reason if f"| `{reason}` |" not in page] == []


def test_every_reason_is_given_somewhere():
    # A documented reason that nothing gives would send people looking for it.
    package = ROOT / "operator" / "pagefleet_operator"
    code = "".join(path.read_text() for path in package.rglob("*.py") if path.parent.name != "api")
    assert [name for name in Reason.__members__ if f"Reason.{name}" not in code] == []

"""Which programs are built, from what, and when they are built again."""

from __future__ import annotations

import pytest

from e2e.cluster.modules import (
    MODULES,
    PROMLINT,
    Module,
    compute_digest,
    parse_go_version,
    required_go_version,
    select_modules,
)

MODULE = Module(name="tool", binaries={"tool": "example.org/tool"}, set_strings=("example.org/tool.version=v1",))
SOURCES = {"go.mod": b"module m\n", "go.sum": b""}


@pytest.mark.parametrize(
    ("sources", "go", "module"),
    [
        pytest.param({**SOURCES, "go.sum": b"x"}, "go1.26.8 linux/amd64", MODULE, id="another dependency"),
        pytest.param(SOURCES, "go1.26.9 linux/amd64", MODULE, id="another Go"),
        pytest.param(SOURCES, "go1.26.8 linux/arm64", MODULE, id="another machine"),
        pytest.param(
            SOURCES,
            "go1.26.8 linux/amd64",
            Module(name="tool", binaries=MODULE.binaries, set_strings=("example.org/tool.version=v2",)),
            id="another flag",
        ),
        pytest.param(
            SOURCES,
            "go1.26.8 linux/amd64",
            Module(name="tool", binaries={"tool2": "example.org/tool"}, set_strings=MODULE.set_strings),
            id="another program",
        ),
    ],
)
def test_the_digest_changes_with_whatever_changes_the_build(sources, go, module):
    assert compute_digest(sources, go, module) != compute_digest(SOURCES, "go1.26.8 linux/amd64", MODULE)


def test_the_digest_stays_when_nothing_changes():
    reordered = dict(reversed(SOURCES.items()))
    assert compute_digest(reordered, "go1.26.8", MODULE) == compute_digest(SOURCES, "go1.26.8", MODULE)
    assert len(compute_digest(SOURCES, "go1.26.8", MODULE)) == 12


def test_build_flags_strip_and_stamp():
    assert MODULE.build_flags == (
        "-trimpath",
        "-gcflags=all=-dwarf=false -l",
        "-ldflags",
        "-s -w -X example.org/tool.version=v1",
    )


@pytest.mark.parametrize("module", [*MODULES, PROMLINT], ids=lambda module: module.name)
def test_every_row_has_its_go_module_in_the_repository(module):
    text = (module.path / "go.mod").read_text()
    for package in module.binaries.values():
        assert package == "." or f"{package}\n" in text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go1.27 linux/arm64", (1, 27)),
        ("go version go1.27.1-custom linux/amd64", (1, 27, 1)),
        ("go version devel +abc linux/amd64", None),
        ("", None),
    ],
)
def test_go_versions_are_read(text, version):
    assert parse_go_version(text) == version


def test_the_newest_go_line_is_required():
    assert required_go_version(["module a\n\ngo 1.26.0\n", "module b\n\ngo 1.26.8\n\ntool x\n"]) == (1, 26, 8)


def test_modules_come_in_the_table_order():
    assert [module.name for module in select_modules(["helm", "pause"])] == ["pause", "helm"]


def test_an_unknown_module_is_named():
    with pytest.raises(KeyError, match="no such module: prometheus"):
        select_modules(["helm", "prometheus"])

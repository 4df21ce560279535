"""Make and remove the control groups that hold a node's pods, in every hierarchy of version 1 or 2."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

REMOVAL_TIMEOUT_S = 10.0


def parse_hierarchies(mounts: str) -> list[tuple[Path, str]]:
    """Mount point and type (`cgroup` or `cgroup2`) of each hierarchy in the text of /proc/mounts."""
    rows = (line.split() for line in mounts.splitlines())
    return [(Path(row[1]), row[2]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def list_hierarchies() -> list[tuple[Path, str]]:
    """Those of this process's mount namespace."""
    return parse_hierarchies(Path("/proc/mounts").read_text())


def create_cgroup(name: str, hierarchies: Iterable[tuple[Path, str]]) -> None:
    """Make the group everywhere. A new cpuset allows no CPU and a version 2 group no controller until told."""
    for root, kind in hierarchies:
        if kind == "cgroup2":
            enable_controllers(root)
        folder = root / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if kind == "cgroup" and (root / file).exists():
                (folder / file).write_text((root / file).read_text())


def enable_controllers(root: Path) -> None:
    """Hand every controller of a version 2 hierarchy down to its groups."""
    controllers = (root / "cgroup.controllers").read_text().split()
    if controllers:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))


def remove_cgroup(name: str, hierarchies: Iterable[tuple[Path, str]]) -> None:
    """Remove the group and those below it, once the kernel has seen off their last process."""
    for root, _ in hierarchies:
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        for folder in sorted((root / name).rglob("*/"), reverse=True):
            remove_folder(folder, deadline)
        remove_folder(root / name, deadline)


def remove_folder(folder: Path, deadline: float) -> None:
    """Remove one group; raises OSError when it is still in use at the deadline."""
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def list_processes(name: str, hierarchies: Iterable[tuple[Path, str]]) -> set[int]:
    """Every process in the group or below it."""
    files = (file for root, _ in hierarchies for file in (root / name).rglob("cgroup.procs"))
    return {int(pid) for file in files for pid in file.read_text().split()}

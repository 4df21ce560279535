"""What this process may use of the machine: memory and processor cores, or less where a cgroup limits them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class _MemoryFiles(NamedTuple):
    """Where a version of cgroups tells limit and use, and which line of `memory.stat` can be reclaimed."""

    limit: str
    usage: str
    stat: str
    reclaimable: str


_CGROUPS = Path("/sys/fs/cgroup")
"""As a container sees its own group."""
_MEMORY_FILES = (
    _MemoryFiles("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _MemoryFiles(
        "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"
    ),
)
"""Of cgroup v2, and of v1."""


_CPU_MAX = "/sys/fs/cgroup/cpu.max"
_CPU_QUOTA = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")
"""Quota and period in microseconds: one file in cgroup v2, two in v1."""


def usable_cores() -> int:
    """Whole cores that this process may keep busy: more threads than that would only wait for each other."""
    try:
        words = Path(_CPU_MAX).read_text().split()
    except OSError:
        words = [str(_read_number(Path(path)) or "max") for path in _CPU_QUOTA]
    return max(1, min(len(os.sched_getaffinity(0)), quota_cores(words)))


def quota_cores(words: list[str]) -> int:
    """Cores of a quota and its period, rounded up; very many where there is no quota."""
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit() and int(words[1])):
        return 2**16
    return -(-int(words[0]) // int(words[1]))


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be allocated without swapping or hitting the cgroup's limit.

    Use counts the page cache: a model that has just been downloaded, or is mapped, would leave nothing. What of it is
    inactive goes before the limit does harm, so it is free here, as in the working set of Kubernetes.
    """
    left = [_machine_available(meminfo.read_text())]
    left += [found for files in _MEMORY_FILES if (found := _cgroup_available(cgroups, files)) is not None]
    return max(min(left), 0)


def _cgroup_available(cgroups: Path, files: _MemoryFiles) -> int | None:
    """None where there is no such group, or no limit."""
    limit, usage = _read_number(cgroups / files.limit), _read_number(cgroups / files.usage)
    if limit is None or usage is None:
        return None
    return limit - max(0, usage - _stat(cgroups / files.stat, files.reclaimable))


def _stat(path: Path, name: str) -> int:
    """One line of `memory.stat`, in bytes; 0 where it cannot be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == name and words[1].isdigit()), 0)


def _machine_available(meminfo: str) -> int:
    """`MemAvailable` of /proc/meminfo, which is in kibibytes."""
    lines = (line.split() for line in meminfo.splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")


def _read_number(path: Path) -> int | None:
    """None where there is no such file or no limit (`max`)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

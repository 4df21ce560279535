"""What this process may use of the machine: memory and processor cores, or less where a cgroup limits them."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of cgroup v2 and v1, as a container sees its own group."""


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


def available_bytes() -> int:
    """Bytes that can be allocated without swapping or hitting the cgroup's limit."""
    limits = [_machine_available(Path("/proc/meminfo").read_text())]
    for limit, usage in _LIMITS:
        found = _read_number(Path(limit)), _read_number(Path(usage))
        if found[0] is not None and found[1] is not None:
            limits.append(found[0] - found[1])
    return max(min(limits), 0)


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

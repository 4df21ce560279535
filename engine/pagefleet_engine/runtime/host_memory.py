"""How much memory this process may still take: the machine's, or less where a cgroup limits it."""

from __future__ import annotations

from pathlib import Path

_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files of cgroup v2 and v1, as a container sees its own group."""


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

"""Which processes are the running cluster, told apart from others that got the same pid later or before a reboot."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

LookUp = Callable[[int], int | None]
"""A process's start time in clock ticks after boot, None when there is no such process (or only its zombie)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process for good: pids are used again, pid and start time together are not."""

    pid: int
    started_ticks: int

    def is_alive(self, look_up: LookUp) -> bool:
        return look_up(self.pid) == self.started_ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the supervisor leaves in a file for `up`, `down` and `status`."""

    boot_id: str
    supervisor: ProcessId
    holder: ProcessId
    api_port: int
    """On the host's loopback."""
    programs: str
    """The folder that every program was started from."""

    def is_running(self, boot_id: str, look_up: LookUp) -> bool:
        """True while both processes of this very cluster live."""
        return self.boot_id == boot_id and self.supervisor.is_alive(look_up) and self.holder.is_alive(look_up)

    def living(self, boot_id: str, look_up: LookUp) -> list[ProcessId]:
        """Those of the two that live, the supervisor first."""
        if self.boot_id != boot_id:
            return []
        return [process for process in (self.supervisor, self.holder) if process.is_alive(look_up)]


def parse_stat(text: str) -> int | None:
    """Start time from the text of /proc/PID/stat; None for a zombie. A command's name may hold brackets."""
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def look_up_process(pid: int) -> int | None:
    """The real `LookUp`."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_boot_id() -> str:
    """Changes at every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_record(path: Path, record: Record) -> None:
    """Replace the file in one step."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record), indent=1))
    partial.rename(path)


def read_record(path: Path) -> Record | None:
    """None when there is none or it is not one: then nothing is known to run."""
    try:
        raw = json.loads(path.read_text())
        supervisor, holder = ProcessId(**raw.pop("supervisor")), ProcessId(**raw.pop("holder"))
        return Record(supervisor=supervisor, holder=holder, **raw)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None

"""One log file per process, of bounded size, with the one before it kept."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 8 << 20


def open_log(folder: Path, name: str) -> BinaryIO:
    """Append mode, so that a process goes on writing at the start after its log was emptied."""
    return (folder / f"{name}.log").open("ab")


def trim_logs(folder: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move what is in a log that has grown too long to NAME.log.1. A few lines written meanwhile may be lost."""
    for path in folder.glob("*.log"):
        if path.stat().st_size > max_bytes:
            path.with_suffix(".log.1").write_bytes(path.read_bytes())
            with path.open("r+b") as file:
                file.truncate(0)


def read_tail(path: Path, num_lines: int) -> str:
    """The last lines of a log; empty when there is none."""
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])

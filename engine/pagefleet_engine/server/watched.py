"""A value read from files, read again when they change, as mounted Secrets and downward-API files do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

Signature = tuple[tuple[str, int, int, int], ...]

_MAX_FILE_BYTES = 1_048_576
_LOOK_INTERVAL_S = 1.0


class WatchedFiles(Generic[T]):
    """`parse` of everything under `path`, a file or a folder of files.

    A change that cannot be read leaves the old value in force: such files are replaced in more than one step.
    """

    def __init__(
        self, path: Path, parse: Callable[[list[bytes]], T], *, flag: str, monotonic: Callable[[], float]
    ) -> None:
        """Raises `OSError` or `ValueError` when there is no usable value to begin with."""
        self._path = path
        self._parse = parse
        self._flag = flag
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._signature = _signature(path)
        self._value = self._read()
        self._problem = ""

    def get(self) -> T:
        """The value now; looks at the files at most once a second."""
        now = self._monotonic()
        if now - self._looked_at >= _LOOK_INTERVAL_S:
            self._looked_at = now
            self._reload_if_changed()
        return self._value

    def _reload_if_changed(self) -> None:
        try:
            signature = _signature(self._path)
            if signature == self._signature and not self._problem:
                return
            self._value, self._signature = self._read(), signature
            self._problem = ""
            log.info("%s %s: read again", self._flag, self._path)
        except (OSError, ValueError) as error:
            problem = explain(error)
            if problem != self._problem:
                log.warning("%s %s: %s; the old value stays in force", self._flag, self._path, problem)
            self._problem = problem

    def _read(self) -> T:
        return self._parse([_content(file) for file in _files(self._path)])


def explain(error: OSError | ValueError) -> str:
    """Why a file is of no use, without its path or content."""
    return (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)


def _files(path: Path) -> list[Path]:
    """Kubernetes keeps its own entries in a mounted volume; their names begin with a dot."""
    if not path.is_dir():
        return [path]
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and entry.is_file())


def _signature(path: Path) -> Signature:
    stats = [(file.name, file.stat()) for file in _files(path)]
    return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def _content(file: Path) -> bytes:
    with file.open("rb") as handle:
        content = handle.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise ValueError(f"{file.name} is larger than {_MAX_FILE_BYTES} bytes")
    return content

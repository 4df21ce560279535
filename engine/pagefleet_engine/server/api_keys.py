"""API keys from files: read at the start, re-read when they change, compared in constant time.

Keys live in memory as keyed digests only. They reach neither a log nor an error.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Callable
from pathlib import Path

from starlette.types import Scope

from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.errors import ApiError, ApiErrorBody

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1_048_576
_LOOK_INTERVAL_S = 1.0

Signature = tuple[tuple[str, int, int, int], ...]


class ApiKeys:
    """The keys under `path`: a file with one key a line, or a folder of such files (a mounted Secret)."""

    def __init__(self, path: Path, *, monotonic: Callable[[], float]) -> None:
        """Raises `StartupError` when there is no key to begin with."""
        self._path = path
        self._monotonic = monotonic
        self._secret = os.urandom(32)
        self._looked_at = monotonic()
        try:
            self._signature = _signature(path)
            self._digests = self._read()
        except (OSError, ValueError) as error:
            raise StartupError(f"--api-key-file {path}: {_why(error)}") from None

    def check(self, scope: Scope) -> None:
        """Raises `ApiError` (401) unless the request brings one of the keys. Its time does not depend on which."""
        self._reload_if_changed()
        presented = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = presented[0].partition(b" ") if len(presented) == 1 else (b"", b"", b"")
        digest = self._digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them, always
        if scheme.lower() != b"bearer" or not any(matches):
            raise _unauthorised()

    def _reload_if_changed(self) -> None:
        """Keys that cannot be read leave the old ones in force: a Secret is replaced in more than one step."""
        now = self._monotonic()
        if now - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = now
        try:
            signature = _signature(self._path)
            if signature == self._signature:
                return
            self._digests, self._signature = self._read(), signature
            log.info("API keys read again: %d", len(self._digests))
        except (OSError, ValueError) as error:
            log.warning("--api-key-file %s: %s; the old keys stay in force", self._path, _why(error))

    def _read(self) -> tuple[bytes, ...]:
        lines = [line.strip() for file in _files(self._path) for line in _content(file).split(b"\n")]
        keys = {line for line in lines if line}
        if not keys:
            raise ValueError("there is no key in it: one key a line")
        return tuple(self._digest(key) for key in sorted(keys))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret).digest()


def _files(path: Path) -> list[Path]:
    """Kubernetes keeps its own entries in a mounted Secret; their names begin with a dot."""
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


def _why(error: OSError | ValueError) -> str:
    return (error.strerror or "cannot be read") if isinstance(error, OSError) else str(error)


def _unauthorised() -> ApiError:
    return ApiError(
        ApiErrorBody(
            status=401,
            message="this needs an API key: send it as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    )

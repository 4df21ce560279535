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
from pagefleet_engine.server.errors import unauthorised
from pagefleet_engine.server.watched import WatchedFiles, explain

log = logging.getLogger(__name__)


class ApiKeys:
    """The keys under `path`: a file with one key a line, or a folder of such files (a mounted Secret).

    When the last key is taken out of them nobody gets in any more. When they cannot be read the old keys stay.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float]) -> None:
        """Raises `StartupError` when there is no key to begin with."""
        self._secret = os.urandom(32)
        self._is_open = False
        try:
            self._digests = WatchedFiles(path, self._parse, flag="--api-key-file", monotonic=monotonic)
        except (OSError, ValueError) as error:
            raise StartupError(f"--api-key-file {path}: {explain(error)}") from None
        if not self._digests.get():
            raise StartupError(f"--api-key-file {path}: there is no key in it: one key a line")
        self._is_open = True

    def check(self, scope: Scope) -> None:
        """Raises `ApiError` (401) unless the request brings one of the keys. Its time does not depend on which."""
        digest = self._digest(bearer_of(scope) or b"")
        matches = [hmac.compare_digest(digest, known) for known in self._digests.get()]  # all of them, always
        if not any(matches):
            raise unauthorised("this needs an API key: send it as Authorization: Bearer KEY", "invalid_api_key")

    def _parse(self, contents: list[bytes]) -> tuple[bytes, ...]:
        keys = {line.strip() for content in contents for line in content.split(b"\n") if line.strip()}
        if not keys and self._is_open:
            log.warning("--api-key-file: there is no key in it: nobody gets in")
        return tuple(self._digest(key) for key in sorted(keys))

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret).digest()


def bearer_of(scope: Scope) -> bytes | None:
    """What follows `Authorization: Bearer`; None unless there is exactly one such header."""
    presented = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(presented) != 1:
        return None
    scheme, _, credential = presented[0].partition(b" ")
    return credential.strip() if scheme.lower() == b"bearer" else None

"""Who may use the control API: whoever brings a token that the operator signed for this pod."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.types import Scope

from pagefleet_engine.contract.tokens import TokenError, parse_public_keys, verify
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.api_keys import bearer_of
from pagefleet_engine.server.errors import unauthorised
from pagefleet_engine.server.sparing import SparingLog
from pagefleet_engine.server.watched import WatchedFiles, explain

log = logging.getLogger(__name__)


class ControlTokens:
    """Checks tokens against the public keys in a file, which may be empty until the operator has written it."""

    def __init__(
        self, path: Path, *, audience: str, monotonic: Callable[[], float], unix_time: Callable[[], float]
    ) -> None:
        self._audience = audience
        self._unix_time = unix_time
        self._log = SparingLog(log, monotonic=monotonic)
        try:
            self._keys = WatchedFiles(path, _parse, flag="--control-key-file", monotonic=monotonic)
        except (OSError, ValueError) as error:
            raise StartupError(f"--control-key-file {path}: {explain(error)}") from None

    def check(self, scope: Scope) -> None:
        """Raises `ApiError` (401)."""
        token = (bearer_of(scope) or b"").decode("ascii", errors="replace")
        try:
            verify(token, self._keys.get(), audience=self._audience, now_s=self._unix_time())
        except TokenError as error:
            self._log.warning("control API: token refused: %s", error)
            raise unauthorised("this needs a token that the operator signed for this pod", "invalid_token") from None


def _parse(contents: list[bytes]) -> list[Ed25519PublicKey]:
    return parse_public_keys(b"\n".join(contents).decode("utf-8", errors="replace"))

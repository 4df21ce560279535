"""`POST /alerts` on a port of its own, for Alertmanager: authenticated, bounded, rate-limited.

The token is re-read from its file at every request, so a rotated Secret counts at once. Nothing of a request is
trusted beyond what `alerts` reads out of it. Requests without the token have a bucket of their own: they cannot use up
what whoever has it may send.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from pagefleet_operator.alerts import AlertBook, AlertError, parse_notification
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics

logger = logging.getLogger(__name__)
MAX_BODY_BYTES: Final = 1 << 20
REQUESTS_PER_S: Final = 5.0
BURST: Final = 20.0
MIN_TOKEN_BYTES: Final = 16


@dataclass(slots=True)
class Bucket:
    """A token bucket: `REQUESTS_PER_S` on the long run, `BURST` at once."""

    tokens: float = BURST
    at_s: float = 0.0

    def take(self, now_s: float) -> bool:
        """Whether one more request may be served."""
        self.tokens = min(BURST, self.tokens + max(0.0, now_s - self.at_s) * REQUESTS_PER_S)
        self.at_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(kw_only=True)
class AlertServer:
    """What a request to `/alerts` does."""

    token_file: Path
    book: AlertBook
    known: Mapping[Key, object]  # the services that there are
    wake: Callable[[Key], None]
    metrics: OperatorMetrics
    monotonic: Callable[[], float]
    _bucket: Bucket = field(default_factory=Bucket)
    _strangers: Bucket = field(default_factory=Bucket)

    async def receive(self, request: web.Request) -> web.Response:
        """200 with how many services were woken; 400, 401 or 429 with one line."""
        is_authorised = self._is_authorised(request)
        bucket = self._bucket if is_authorised else self._strangers
        if not bucket.take(self.monotonic()):
            return self._refuse(429, "too many notifications: group alerts in Alertmanager")
        if not is_authorised:
            return self._refuse(401, "a bearer token is needed: the one in --alert-token-file")
        try:
            alerts = parse_notification(await request.read())
        except AlertError as error:
            return self._refuse(400, str(error))
        now_s = self.monotonic()
        woken = {alert.service for alert in alerts if self.book.hear(alert, self.known, now_s)}
        for service in sorted(woken):
            logger.info("%s: an alert asks to look at it", service)
            self.wake(service)
        self.metrics.alerts.labels(result="woken" if woken else "ignored").inc()
        return web.json_response({"services": len(woken)})

    def _is_authorised(self, request: web.Request) -> bool:
        try:
            token = read_token(self.token_file)
        except ValueError as error:
            logger.warning("%s", error)
            return False
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        matches = hmac.compare_digest(given.strip().encode(errors="surrogateescape"), token)
        return kind.lower() == "bearer" and matches

    def _refuse(self, status: int, message: str) -> web.Response:
        self.metrics.alerts.labels(result="refused").inc()
        headers = {"Retry-After": "10"} if status == 429 else {}
        return web.json_response({"error": message}, status=status, headers=headers)


def read_token(file: Path) -> bytes:
    """The token in the file. Raises `ValueError`, in one line, when there is none or one that could be guessed."""
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"--alert-token-file {file}: {error.strerror}: name a file with the token in it") from None
    if len(token) < MIN_TOKEN_BYTES:
        raise ValueError(
            f"--alert-token-file {file}: the token has {len(token)} bytes: use {MIN_TOKEN_BYTES} random bytes or more"
        )
    return token


async def serve_alerts(server: AlertServer, port: int) -> web.AppRunner:
    """Listen; the caller cleans the runner up. Raises `OSError` when the port is taken."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/alerts", server.receive)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host=None, port=port).start()
    return runner

"""The outermost ASGI layer: what holds for every request, whatever its route.

Header limits, the life cycle, polite closing of old connections, the write time-out, and the last resort for faults.
It decides on the raw ASGI path, the same one that routing uses.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefleet_engine.contract.paths import HEALTH, METRICS, READY
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.errors import ApiError, ApiErrorBody, internal, invalid
from pagefleet_engine.server.lifecycle import Lifecycle
from pagefleet_engine.server.limits import Limits

log = logging.getLogger(__name__)

_LABEL = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

OPEN_PATHS = frozenset({HEALTH, READY, METRICS})
"""Served in every phase and to everybody. Every other path, known or not, needs a key where there are keys."""


class Guard:
    """Wraps the application. `count_refused` is told the status of every error; without `api_keys` all may come."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        lifecycle: Lifecycle,
        monotonic: Callable[[], float],
        count_refused: Callable[[int], None],
        api_keys: ApiKeys | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._api_keys = api_keys
        self._lifecycle = lifecycle
        self._ages = ConnectionAges(limits, monotonic)
        self._count_refused = count_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = label_of(scope["headers"])
        reply = _Reply(send, self._limits.write_timeout_s, lambda: self._closes(scope), self._count_refused, request_id)
        try:
            self._check(scope)
            await self._serve(scope, receive, reply)
        except ClientGone:
            log.debug("client left")
        except ApiError as error:
            await self._answer_error(reply, error)
        except Exception:
            if reply.timed_out:
                log.debug("client stopped reading")  # the framework has wrapped ClientGone in an error of its own
                return
            log.exception("%s %r failed (%s)", scope["method"], scope["path"][:200], request_id.decode())
            await self._answer_error(reply, internal())

    async def _serve(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, reply.send)
            return
        if self._api_keys is not None:
            self._api_keys.check(scope)
        refusal = self._lifecycle.refusal()
        if refusal is not None:
            raise refusal
        with self._lifecycle.serving():
            await self._app(scope, receive, reply.send)

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._limits.header_bytes:
            message = f"the headers are larger than {self._limits.header_bytes} bytes"
            raise invalid(message, status=431, code="headers_too_large")
        if len(scope["path"]) + len(scope["query_string"]) > self._limits.target_bytes:
            raise invalid(f"the path is longer than {self._limits.target_bytes} bytes", status=414, code="uri_too_long")
        if scope["http_version"] == "1.1" and not any(name == b"host" and value for name, value in headers):
            raise invalid("the Host header is missing", code="no_host")

    def _closes(self, scope: Scope) -> bool:
        return self._lifecycle.closes_connections or self._ages.is_old(scope.get("client"))

    async def _answer_error(self, reply: _Reply, error: ApiError) -> None:
        if reply.started:
            return  # too late for a status; the body that breaks off tells the client
        try:
            await send_error(error.body, reply.send)
        except ClientGone:
            log.debug("client left before its error")


async def send_error(body: ApiErrorBody, send: Send) -> None:
    """Answer with an error."""
    await send({"type": "http.response.start", "status": body.status, "headers": body.raw_headers()})
    await send({"type": "http.response.body", "body": body.encode()})


class _Reply:
    """`send` with a time-out; remembers whether a response has begun, and asks clients to leave when they should."""

    def __init__(
        self,
        send: Send,
        timeout_s: float,
        closes: Callable[[], bool],
        count_refused: Callable[[int], None],
        request_id: bytes,
    ) -> None:
        self._request_id = request_id
        self._send = send
        self._timeout_s = timeout_s
        self._closes = closes
        self._count_refused = count_refused
        self.started = False
        self.timed_out = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if message["status"] >= 400:
                self._count_refused(message["status"])
            headers = [*message["headers"], (b"x-request-id", self._request_id)]
            if self._closes():
                headers = [*(header for header in headers if header[0] != b"connection"), (b"connection", b"close")]
            message = {**message, "headers": headers}
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self.timed_out = True
            raise ClientGone from None


def label_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The client's `X-Request-Id` where it is one short printable word, else one of ours; a label and never a key."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given if _LABEL.fullmatch(given) else uuid4().hex.encode()


class ConnectionAges:
    """Since when each connection, named by its client's address and port, has been in use."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._first_seen: OrderedDict[tuple[str, int], float] = OrderedDict()

    def is_old(self, client: tuple[str, int] | None) -> bool:
        """True once the connection should be closed; it is forgotten then."""
        if client is None:
            return False
        now = self._monotonic()
        first = self._first_seen.setdefault(client, now)
        if now - first > self._limits.connection_age_s:
            del self._first_seen[client]
            return True
        while len(self._first_seen) > self._limits.connections:
            self._first_seen.popitem(last=False)
        return False

"""The outermost ASGI layer: what holds for every request, whatever its route.

Header limits, credentials, the life cycle, and the last resort for faults. It decides on the raw ASGI path, the same
one that routing uses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.errors import CODE_KEY, ApiError, ApiErrorBody, internal, invalid
from pagefleet_engine.server.lifecycle import Lifecycle
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.reply import ConnectionAges, Reply, label_of

log = logging.getLogger(__name__)


class Guard:
    """Wraps an application.

    `open_paths` are served in every phase and to everybody. Every other path, known or not, has to pass `authorise`
    (raises `ApiError`) and, where there is a `lifecycle`, its refusals; it then counts as in flight.
    `count_refused` is told status and code of every error on them; a probe that hears "not yet" is no refused request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        monotonic: Callable[[], float],
        open_paths: frozenset[str],
        authorise: Callable[[Scope], None] | None = None,
        lifecycle: Lifecycle | None = None,
        count_refused: Callable[[int, str | None], None] | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._open_paths = open_paths
        self._authorise = authorise
        self._lifecycle = lifecycle
        self._count_refused = count_refused or _ignore
        self._ages = ConnectionAges(limits, monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._ages.using(scope.get("client")):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(
            send,
            timeout_s=self._limits.write_timeout_s,
            closes=lambda: self._closes(scope),
            count_refused=lambda status: self._count(scope, status),
            request_id=label_of(scope["headers"]),
        )
        try:
            self._check_head(scope)
            await self._serve(scope, receive, reply)
        except ClientGone:
            log.debug("client left")
        except ApiError as error:
            scope[CODE_KEY] = error.body.code
            await _answer_error(reply, error)
        except Exception:
            if reply.timed_out:
                log.debug("client stopped reading")  # the framework has wrapped ClientGone in an error of its own
                return
            log.exception("%s %r failed (%s)", scope["method"], scope["path"][:200], reply.request_id.decode())
            await _answer_error(reply, internal())

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        if scope["path"] in self._open_paths:
            await self._app(scope, receive, reply.send)
            return
        if self._authorise is not None:
            self._authorise(scope)
        if self._lifecycle is None:
            await self._app(scope, receive, reply.send)
            return
        refusal = self._lifecycle.refusal()
        if refusal is not None:
            raise refusal
        with self._lifecycle.serving():
            await self._app(scope, receive, reply.send)

    def _check_head(self, scope: Scope) -> None:
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._limits.header_bytes:
            message = f"the headers are larger than {self._limits.header_bytes} bytes"
            raise invalid(message, status=431, code="headers_too_large")
        if len(scope["path"]) + len(scope["query_string"]) > self._limits.target_bytes:
            raise invalid(f"the path is longer than {self._limits.target_bytes} bytes", status=414, code="uri_too_long")
        if scope["http_version"] == "1.1" and not any(name == b"host" and value for name, value in headers):
            raise invalid("the Host header is missing", code="no_host")

    def _count(self, scope: Scope, status: int) -> None:
        if scope["path"] not in self._open_paths:
            self._count_refused(status, scope.get(CODE_KEY))

    def _closes(self, scope: Scope) -> bool:
        leaving = self._lifecycle is not None and self._lifecycle.closes_connections
        return leaving or self._ages.is_old(scope.get("client"))


def _ignore(_status: int, _code: str | None) -> None:
    """Count nothing."""


async def _answer_error(reply: Reply, error: ApiError) -> None:
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

"""`send` as the application sees it: with a time-out, a label on each response, and polite requests to leave."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from starlette.types import Message, Send

from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.limits import Limits

_LABEL = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Reply:
    """One response on its way out. Raises `ClientGone` when the client does not read."""

    def __init__(
        self,
        send: Send,
        *,
        timeout_s: float,
        closes: Callable[[], bool],
        count_refused: Callable[[int], None],
        request_id: bytes,
    ) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._closes = closes
        self._count_refused = count_refused
        self.request_id = request_id
        self.started = False
        self.timed_out = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if message["status"] >= 400:
                self._count_refused(message["status"])
            message = {**message, "headers": self._headers(message["headers"])}
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self.timed_out = True
            raise ClientGone from None

    def _headers(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        labelled = [*headers, (b"x-request-id", self.request_id)]
        if not self._closes():
            return labelled
        return [*(header for header in labelled if header[0] != b"connection"), (b"connection", b"close")]


def label_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The client's `X-Request-Id` where it is one short printable word, else one of ours; a label and never a key."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given if _LABEL.fullmatch(given) else uuid4().hex.encode()


@dataclass(slots=True)
class _Use:
    since_s: float
    num_requests: int = 0
    is_over: bool = False


class ConnectionAges:
    """Since when each connection, named by its client's address and port, has been in use.

    ASGI gives a connection no identity of its own. One that answers a request is never forgotten; of the others, those
    are that were used longest ago. A new connection from a port that is remembered is closed early, which does no harm.
    """

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._busy: dict[tuple[str, int], _Use] = {}
        self._idle: OrderedDict[tuple[str, int], _Use] = OrderedDict()
        """The one used last at the end."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    @contextmanager
    def using(self, client: tuple[str, int] | None) -> Iterator[None]:
        """Around each request."""
        if client is None:
            yield
            return
        use = self._busy.get(client) or self._idle.pop(client, None) or _Use(self._monotonic())
        self._busy[client] = use
        use.num_requests += 1  # the next one may begin before the last one's task has ended
        try:
            yield
        finally:
            use.num_requests -= 1
            if not use.num_requests:
                self._rest(client)

    def is_old(self, client: tuple[str, int] | None) -> bool:
        """True once the connection should be closed; it is forgotten then. Ask within `using`."""
        if client is None:
            return False
        use = self._busy[client]
        use.is_over = self._monotonic() - use.since_s > self._limits.connection_age_s
        return use.is_over

    def _rest(self, client: tuple[str, int]) -> None:
        use = self._busy.pop(client)
        if not use.is_over:
            self._idle[client] = use
        while len(self._idle) > self._limits.connections:
            self._idle.popitem(last=False)

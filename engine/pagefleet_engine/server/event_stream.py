"""A job's answer as server-sent events. An error on the way is an event too, since the status has gone out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.departure import Departure, give_up
from pagefleet_engine.server.errors import ApiError, internal
from pagefleet_engine.server.job import Job
from pagefleet_engine.server.logprob_shapes import Json
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import Shape, Tally

log = logging.getLogger(__name__)

T = TypeVar("T")

_DONE = b"data: [DONE]\n\n"
_COMMENT = b": waiting\n\n"
"""The standard has readers ignore it; what lies on the way takes the connection for alive."""


class EventStream(Response):
    """One event per delta, then `[DONE]`; a comment line wherever there is nothing to say for long."""

    def __init__(
        self,
        service: Service,
        job: Job,
        shape: Shape,
        first: asyncio.Future[Delta],
        deltas: AsyncGenerator[Delta, None],
        departure: Departure,
    ) -> None:
        """`first` is the next of the deltas, which may still be on its way: then the headers go ahead."""
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._service = service
        self._job = job
        self._shape = shape
        self._first = first
        self._deltas = deltas
        self._departure = departure
        self._tally = Tally(job.num_prompt_tokens)
        self._sending = asyncio.Lock()
        self._num_sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._departure.race(self._send_all(send))
        except ClientGone:
            log.debug("client of %s left", self._job.id)
        finally:
            await give_up(self._first)
            await self._deltas.aclose()
            self._departure.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if not self._first.done():
            await self._send(send, b"")  # the HTTP server keeps the headers until there is a body
        commenting = asyncio.create_task(self._comment(send))
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    await self._send(send, event)
        finally:
            await give_up(commenting)
        await send({"type": "http.response.body", "body": _DONE})

    async def _send(self, send: Send, event: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        self._num_sent += 1

    async def _comment(self, send: Send) -> None:
        while True:
            before = self._num_sent
            await asyncio.sleep(self._service.limits.stream_comment_s)
            if self._num_sent != before or self._sending.locked():
                continue
            try:
                await self._send(send, _COMMENT)
            except ClientGone:
                self._departure.close()
                return

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            first = await self._first
            for chunk in self._shape.opening(self._job):
                yield self._event(chunk)
            if event := await self._delta_event(first):
                yield event
            async for delta in self._deltas:
                if event := await self._delta_event(delta):
                    yield event
        except ApiError as error:
            yield _encode(error.body.payload())
            return
        except Exception:
            log.exception("request %s failed", self._job.id)
            yield _encode(internal().body.payload())
            return
        if self._job.include_usage:
            yield _encode(self._shape.usage_chunk(self._job, self._tally))

    async def _delta_event(self, delta: Delta) -> bytes:
        """Empty when there is nothing to show, for example while a stop string may be under way."""
        self._tally.add(delta)
        if delta.is_empty:
            return b""
        if delta.prompt_logprobs is None:
            return self._event(self._shape.chunk(self._job, delta))
        return await off_the_loop(self._service, lambda: self._event(self._shape.chunk(self._job, delta)))

    def _event(self, chunk: Json) -> bytes:
        if self._job.continuous_usage:
            chunk["usage"] = self._tally.usage()
        elif self._job.include_usage:
            chunk["usage"] = None
        return _encode(chunk)


async def off_the_loop(service: Service, make: Callable[[], T]) -> T:
    """Half a million values must not hold up anybody's stream, nor be there twice at once."""
    async with service.large_answers:
        return await asyncio.to_thread(make)


def _encode(value: Json) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"

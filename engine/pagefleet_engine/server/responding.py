"""Sends a job's answer: whole as one JSON object, or as server-sent events.

The response starts only after the first delta, so that a refusal by the engine still has its own status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.best_of import keep_best
from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.departure import Departure
from pagefleet_engine.server.errors import ApiError, internal
from pagefleet_engine.server.generation import run_job
from pagefleet_engine.server.job import Job
from pagefleet_engine.server.logprob_shapes import Json
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import Shape, Tally, Whole

log = logging.getLogger(__name__)

T = TypeVar("T")

_DONE = b"data: [DONE]\n\n"


async def respond(request: Request, service: Service, job: Job, shape: Shape) -> Response:
    """Raises `ApiError` when nothing was generated yet, `ClientGone` when the client left."""
    departure = Departure(request.receive)
    deltas = run_job(service, job)
    try:
        if not job.stream:
            return await departure.race(_collect(service, job, deltas, shape))
        first = await departure.race(anext(deltas))
    except BaseException:
        await deltas.aclose()
        raise
    finally:
        if not job.stream:
            departure.close()
    return _EventStream(service, job, shape, first, deltas, departure)


async def _collect(service: Service, job: Job, deltas: AsyncGenerator[Delta, None], shape: Shape) -> Response:
    wholes = {choice.index: Whole() for choice in job.choices}
    tally = Tally(job.num_prompt_tokens)
    async with aclosing(deltas):
        async for delta in deltas:
            wholes[delta.index].add(delta)
            tally.add(delta)
    job, kept = keep_best(job, list(wholes.values()))
    if all(whole.prompt_logprobs is None for whole in kept):
        return JsonResponse(shape.response(job, kept, tally))
    return await _off_the_loop(service, lambda: JsonResponse(shape.response(job, kept, tally)))


async def _off_the_loop(service: Service, make: Callable[[], T]) -> T:
    """Half a million values must not hold up anybody's stream, nor be there twice at once."""
    async with service.large_answers:
        return await asyncio.to_thread(make)


class JsonResponse(Response):
    """Any JSON value, UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class _EventStream(Response):
    """One event per delta, then `[DONE]`. An error on the way is an event too, since the status has gone out."""

    def __init__(
        self,
        service: Service,
        job: Job,
        shape: Shape,
        first: Delta,
        deltas: AsyncGenerator[Delta, None],
        departure: Departure,
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._service = service
        self._job = job
        self._shape = shape
        self._first = first
        self._deltas = deltas
        self._departure = departure
        self._tally = Tally(job.num_prompt_tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._deltas):
                await self._departure.race(self._send_all(send))
        except ClientGone:
            log.debug("client of %s left", self._job.id)
        finally:
            self._departure.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": _DONE})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        for chunk in self._shape.opening(self._job):
            yield self._event(chunk)
        try:
            if event := await self._delta_event(self._first):
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
        return await _off_the_loop(self._service, lambda: self._event(self._shape.chunk(self._job, delta)))

    def _event(self, chunk: Json) -> bytes:
        if self._job.continuous_usage:
            chunk["usage"] = self._tally.usage()
        elif self._job.include_usage:
            chunk["usage"] = None
        return _encode(chunk)


def _encode(value: Json) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"

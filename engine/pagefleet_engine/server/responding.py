"""From a request whose body is there to its answer: whole as one JSON object, or as server-sent events.

A stream's status goes out when the engine has taken the job, so that a refusal still has a status of its own. What
leads to an answer is given up as soon as the client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.best_of import keep_best
from pagefleet_engine.server.departure import Departure, give_up
from pagefleet_engine.server.event_stream import EventStream, off_the_loop
from pagefleet_engine.server.generation import run_job
from pagefleet_engine.server.intake import Intake
from pagefleet_engine.server.job import Job
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import Shape, Tally, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that has arrived whole."""

    request: Request
    """Its headers, above all."""
    value: dict[str, Any]
    """Its body."""
    arrived_at_s: float
    """By the service's monotonic clock."""
    departure: Departure


Endpoint = Callable[[Call, Service], Awaitable[Response]]


async def attend(request: Request, service: Service, endpoint: Endpoint) -> Response:
    """The endpoint's answer. Raises `ApiError`, or `ClientGone` when the client left first."""
    value = await service.bodies.read(request)
    departure = Departure(request.receive)
    call = Call(request=request, value=value, arrived_at_s=service.monotonic(), departure=departure)
    try:
        response = await departure.race(endpoint(call, service))
    except BaseException:
        departure.close()
        raise
    if not isinstance(response, EventStream):
        departure.close()
    return response


async def respond(call: Call, service: Service, job: Job, shape: Shape) -> Response:
    """Raises `ApiError` when the engine does not take the job, or fails on it while its status can still tell."""
    intake = Intake(len(job.choices))
    deltas = run_job(service, job, intake)
    if not job.stream:
        return await _collect(service, job, deltas, shape)
    first = asyncio.ensure_future(anext(deltas))
    try:
        await _until_status(first, intake, service.limits.stream_headers_s)
    except BaseException:
        await give_up(first)
        await deltas.aclose()
        raise
    return EventStream(service, job, shape, first, deltas, call.departure)


async def _until_status(first: asyncio.Future[Delta], intake: Intake, patience_s: float) -> None:
    """Returns when the status is known to be 200: at the first delta, or some time after the engine took the job."""
    taken = asyncio.create_task(intake.wait_complete())
    try:
        either: set[asyncio.Future[Any]] = {first, taken}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            await asyncio.wait({first}, timeout=patience_s)
    finally:
        taken.cancel()
    if first.done():
        first.result()


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
    return await off_the_loop(service, lambda: JsonResponse(shape.response(job, kept, tally)))


class JsonResponse(Response):
    """Any JSON value, UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)

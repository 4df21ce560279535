"""The control API's application: runtime configuration, drain and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Scope

from pagefleet_engine.contract.control import (
    DRAIN,
    RUNTIME_CONFIG,
    STATE,
    DrainRequest,
    EngineState,
    RuntimeAnswer,
    RuntimeChange,
)
from pagefleet_engine.errors import EngineDead
from pagefleet_engine.server.app import new_app
from pagefleet_engine.server.control.runtime import Runtime
from pagefleet_engine.server.drain import Drain
from pagefleet_engine.server.failures import translate
from pagefleet_engine.server.guard import Guard
from pagefleet_engine.server.responding import JsonResponse
from pagefleet_engine.server.schemas import first_problem
from pagefleet_engine.server.service import Service

M = TypeVar("M", bound=BaseModel)


def create_control_app(
    service: Service, drain: Drain, runtime: Callable[[], Runtime], authorise: Callable[[Scope], None]
) -> ASGIApp:
    """`runtime` raises `ApiError` (503) while the model is loading. Every path needs a token, known or not."""
    app = new_app("PageFleet engine control")
    _add_runtime_config(app, service, runtime)
    _add_drain(app, service, drain)
    return Guard(
        app,
        limits=service.limits,
        lifecycle=None,
        monotonic=service.monotonic,
        authorise=authorise,
        open_paths=frozenset(),
    )


def _add_runtime_config(app: FastAPI, service: Service, runtime: Callable[[], Runtime]) -> None:
    @app.get(RUNTIME_CONFIG)
    async def read() -> Response:
        return _reply(runtime().config)

    @app.patch(RUNTIME_CONFIG)
    async def change(request: Request) -> Response:
        wanted = await _parse(request, service, RuntimeChange)
        try:
            old, new = await runtime().change(wanted)
        except EngineDead as error:
            raise translate(error) from error
        return _reply(RuntimeAnswer(old=old, new=new, running=service.engine.stats().running))


def _add_drain(app: FastAPI, service: Service, drain: Drain) -> None:
    @app.get(STATE)
    async def state() -> Response:
        return _reply(_state(service))

    @app.post(DRAIN)
    async def begin(request: Request) -> Response:
        wanted = await _parse(request, service, DrainRequest)
        drain.begin()
        if wanted.refuse:
            drain.refuse()
        return _reply(_state(service))

    @app.delete(DRAIN)
    async def cancel() -> Response:
        drain.cancel()
        return _reply(_state(service))


def _state(service: Service) -> EngineState:
    stats = service.stats()
    return EngineState(
        phase=service.lifecycle.phase,
        in_flight=service.lifecycle.in_flight,
        running=0 if stats is None else stats.running,
        waiting=0 if stats is None else stats.waiting,
        swapped=0 if stats is None else stats.swapped,
    )


async def _parse(request: Request, service: Service, kind: type[M]) -> M:
    value = await service.bodies.read(request)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise first_problem(error) from None


def _reply(model: BaseModel) -> Response:
    return JsonResponse(model.model_dump(mode="json"))

"""The ASGI application: routes, and nothing that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, TypeAdapter
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Match
from starlette.types import ASGIApp

from pagefleet_engine.contract.paths import HEALTH, METRICS, READY
from pagefleet_engine.server import endpoints, token_endpoints
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.body import ClientGone
from pagefleet_engine.server.errors import CODE_KEY, ApiError, ErrorAnswer, internal, invalid
from pagefleet_engine.server.guard import Guard
from pagefleet_engine.server.responding import Endpoint, JsonResponse, attend
from pagefleet_engine.server.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from pagefleet_engine.server.service import Service

_VERSION = installed_version("pagefleet")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = ("application/json",)
_JSON_OR_EVENTS = ("application/json", "text/event-stream")
_NOT_NOW: dict[int | str, dict[str, Any]] = {
    503: {"description": "not now; the body says why", "content": {"text/plain": {}}}
}


def create_app(service: Service, *, api_keys: ApiKeys | None = None) -> ASGIApp:
    """The whole application for one service; with `api_keys`, only for those who bring one."""
    app = new_app("PageFleet engine")
    _add_probes(app, service)
    _add_model_routes(app, service)
    for path, endpoint, body, kinds in (
        ("/v1/chat/completions", endpoints.chat, ChatBody, _JSON_OR_EVENTS),
        ("/v1/completions", endpoints.completions, CompletionBody, _JSON_OR_EVENTS),
        ("/tokenize", token_endpoints.tokenize, TokenizeBody, _JSON),
        ("/detokenize", token_endpoints.detokenize, DetokenizeBody, _JSON),
    ):
        _add_post(app, service, path, endpoint, body, kinds)
    return Guard(
        app,
        limits=service.limits,
        monotonic=service.monotonic,
        open_paths=frozenset({HEALTH, READY, METRICS}),
        authorise=None if api_keys is None else api_keys.check,
        lifecycle=service.lifecycle,
        count_refused=service.metrics.count_refused,
    )


def new_app(title: str) -> FastAPI:
    """An application without routes whose errors have the API's shape."""
    error = {"application/json": {"schema": _inlined(TypeAdapter(ErrorAnswer).json_schema())}}
    app = FastAPI(
        title=title,
        version=_VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            "4XX": {"description": "the request has to change, or to come later", "content": error},
            "5XX": {"description": "a fault of the engine, or not now", "content": error},
        },
    )
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(ClientGone, _answer_incomplete)
    app.add_exception_handler(Exception, _answer_fault)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    async def health(_request: Request) -> Response:
        """200 unless the process should be restarted."""
        problem = service.health_problem()
        return _plain("ok" if problem is None else problem, 200 if problem is None else 503)

    async def ready(_request: Request) -> Response:
        """200 while new traffic should come here."""
        return _plain(service.lifecycle.phase, 200 if service.lifecycle.is_ready else 503)

    async def metrics(request: Request) -> Response:
        """Prometheus text; `name[]` keeps only those families or series."""
        text = service.metrics.render(request.query_params.getlist("name[]"))
        return Response(text, headers={"content-type": _METRICS_TYPE})

    for path, probe, responses in ((HEALTH, health, _NOT_NOW), (READY, ready, _NOT_NOW), (METRICS, metrics, None)):
        app.get(path, response_class=PlainTextResponse, responses=responses)(probe)
        # Load balancers ask like this; the HTTP server sends no body then.
        app.add_route(path, probe, methods=["HEAD"], include_in_schema=False)


def _add_model_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        """The served names and the routes' aliases; all of them are the same model."""
        return JsonResponse({"object": "list", "data": [_model(service, name) for name in service.routes.names]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return JsonResponse(_model(service, service.model_id(name)))

    @app.get("/version")
    async def version() -> Response:
        """What runs here; the backend is known once the model is loaded."""
        return JsonResponse({"version": _VERSION} | service.backend)


def _add_post(
    app: FastAPI, service: Service, path: str, endpoint: Endpoint, body: type[BaseModel], kinds: Sequence[str]
) -> None:
    """The endpoint reads its body itself, within the limits; the document still shows its schema."""
    schema = {"content": {"application/json": {"schema": _inlined(body.model_json_schema())}}, "required": True}

    async def handle(request: Request) -> Response:
        return await attend(request, service, endpoint)

    answer: dict[str, Any] = {"content": {kind: {} for kind in kinds}}
    app.post(path, openapi_extra={"requestBody": schema}, name=endpoint.__name__, responses={200: answer})(handle)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references: those of a body would point into the whole document."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return resolve(definitions[value["$ref"].rsplit("/", 1)[1]])
        return {key: resolve(item) for key, item in value.items()}

    resolved: dict[str, Any] = resolve(schema)
    return resolved


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "pagefleet",
        "root": service.served_names[0],
        "parent": None,
        "max_model_len": service.max_model_len(),
    }


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"method {request.method} is not allowed here"
        body = invalid(message, status=405, code="method_not_allowed").body
        return _as_response(request, ApiError(replace(body, headers={"allow": _allowed(request)})))
    return _as_response(request, invalid("there is no such path", status=error.status_code, code="not_found"))


def _allowed(request: Request) -> str:
    """The methods of this path; the framework would name those of its first route only."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in matching for method in route.methods}))


async def _answer_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _as_response(request, error)


async def _answer_incomplete(request: Request, _error: Exception) -> Response:
    """Mostly nobody hears it; but a body with broken framing ends like that too, and its sender may still be there."""
    return _as_response(request, invalid("the request was not received whole", code="incomplete_request"))


async def _answer_fault(request: Request, _error: Exception) -> Response:
    """A fault of ours; the framework raises it again, and the guard logs it."""
    return _as_response(request, internal())


def _as_response(request: Request, error: ApiError) -> Response:
    request.scope[CODE_KEY] = error.body.code
    response = Response(error.body.encode(), status_code=error.body.status)
    response.raw_headers = error.body.raw_headers()
    return response


def _plain(text: str, status: int) -> Response:
    return Response(text + "\n", status_code=status, media_type="text/plain")

"""Reads a request's body and turns it into a checked JSON value, within `Limits`."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive

from pagefleet_engine.server.errors import ApiError, invalid
from pagefleet_engine.server.limits import Limits

_LARGE_BODY = 65_536  # parsing more than this on the event loop would hold up the streams


class ClientGone(Exception):
    """The client left before its answer."""


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object in the body. Raises `ApiError` or `ClientGone`."""
    _check_content_type(request.headers.get("content-type"))
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            raw = await _read(request.receive, limits)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise invalid(message, status=408, code="body_timeout") from None
    if len(raw) > _LARGE_BODY:
        return await asyncio.to_thread(parse_json, raw, limits)
    return parse_json(raw, limits)


def parse_json(raw: bytes, limits: Limits) -> dict[str, Any]:
    """Parse and check depth, number of values and numbers that are not finite. Raises `ApiError`."""
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    _check_shape(value, limits)
    return value


async def _read(receive: Receive, limits: Limits) -> bytes:
    pieces: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        piece = message.get("body", b"")
        num_bytes += len(piece)
        pieces.append(piece)
        if num_bytes > limits.body_bytes or len(pieces) > limits.body_pieces:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _check_content_type(content_type: str | None) -> None:
    kind = (content_type or "application/json").split(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise invalid("send the body as content-type application/json", status=415, code="unsupported_media_type")


def _too_large(limits: Limits) -> ApiError:
    message = f"the body is larger than {limits.body_bytes} bytes or came in more than {limits.body_pieces} pieces"
    return invalid(message, status=413, code="body_too_large")


def _check_shape(value: Any, limits: Limits) -> None:
    """Level by level, so that the depth of the value never becomes the depth of our stack."""
    level, depth, num_nodes = [value], 0, 1
    while level:
        depth += 1
        if depth > limits.json_depth:
            raise invalid(f"the body nests deeper than {limits.json_depth} levels", code="json_too_deep")
        below: list[Any] = []
        for item in level:
            below.extend(item.values() if isinstance(item, dict) else item)
        num_nodes += len(below)
        if num_nodes > limits.json_nodes:
            raise invalid(f"the body holds more than {limits.json_nodes} values", code="json_too_large")
        if any(isinstance(item, float) and not math.isfinite(item) for item in below):
            raise invalid("the body holds a number that is too large", code="invalid_json")
        level = [item for item in below if isinstance(item, dict | list)]

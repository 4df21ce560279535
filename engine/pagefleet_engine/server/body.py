"""Reads a request's body and turns it into a checked JSON value, within `Limits`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive

from pagefleet_engine.server.errors import ApiError, invalid, queue_full
from pagefleet_engine.server.json_shape import check_shape, holds_more_values
from pagefleet_engine.server.limits import Limits

T = TypeVar("T")


class ClientGone(Exception):
    """The client left before its answer."""


class BodyReader:
    """Reads the bodies of one server, all of which together are bounded. Belongs to the event loop.

    Small bodies count against no budget, so that whoever fills it with large ones cannot shut out the others.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parsing = asyncio.Semaphore(1)
        self.num_held_bytes = 0
        """Of large bodies that arrive, or have arrived and are not parsed yet."""

    async def read(self, request: Request) -> dict[str, Any]:
        """The JSON object in the body. Raises `ApiError` or `ClientGone`."""
        _check_content_type(request.headers.get("content-type"))
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._limits.body_bytes:
            raise self._too_large()
        raw = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                await self._receive(request.receive, raw)
            request.state.has_large_body = self._held(len(raw)) > 0
            return await self._parse(raw)
        except TimeoutError:
            message = f"the body did not arrive within {self._limits.body_timeout_s:g} s"
            raise invalid(message, status=408, code="body_timeout") from None
        finally:
            self.num_held_bytes -= self._held(len(raw))

    async def check(self, request: Request, work: Callable[[], T]) -> T:
        """Result of checks on a body that has been read; those of a large one do not hold up the event loop."""
        if not request.state.has_large_body:
            return work()
        async with self._parsing:
            return await asyncio.to_thread(work)

    async def _receive(self, receive: Receive, raw: bytearray) -> None:
        num_pieces = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            num_pieces += 1
            piece = message.get("body", b"")
            if len(raw) + len(piece) > self._limits.body_bytes or num_pieces > self._limits.body_pieces:
                raise self._too_large()
            self._hold(len(raw), len(raw) + len(piece))
            raw += piece
            if not message.get("more_body", False):
                return

    async def _parse(self, raw: bytearray) -> dict[str, Any]:
        """Large ones in turn and in a thread: the parser itself lets nothing else run, the checks around it do."""
        if not self._held(len(raw)):
            return parse_json(raw, self._limits)
        async with self._parsing:
            return await asyncio.to_thread(parse_json, raw, self._limits)

    def _held(self, num_bytes: int) -> int:
        return num_bytes if num_bytes > self._limits.body_inline_bytes else 0

    def _hold(self, before: int, after: int) -> None:
        """Count a body that has grown. Raises `ApiError` where all of them would be too many."""
        more = self._held(after) - self._held(before)
        if self.num_held_bytes + more > self._limits.bodies_bytes:
            raise queue_full("too many large bodies are being read: try again", 1.0, closes=True)
        self.num_held_bytes += more

    def _too_large(self) -> ApiError:
        limits = self._limits
        message = f"the body is larger than {limits.body_bytes} bytes or came in more than {limits.body_pieces} pieces"
        return invalid(message, status=413, code="body_too_large")


def parse_json(raw: bytes | bytearray, limits: Limits) -> dict[str, Any]:
    """Count the values, parse, then check depth and numbers that are not finite. Raises `ApiError`."""
    if holds_more_values(raw, limits.json_nodes):
        raise invalid(f"the body holds more than {limits.json_nodes} values", code="json_too_large")
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    check_shape(value, limits)
    return value


def _check_content_type(content_type: str | None) -> None:
    kind = (content_type or "application/json").split(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise invalid("send the body as content-type application/json", status=415, code="unsupported_media_type")

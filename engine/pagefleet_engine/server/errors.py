"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

One exception for all of them. Messages are fixed sentences with the client's own numbers in them; they never carry
tracebacks, paths or object addresses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INVALID = "invalid_request_error"

CODE_KEY = "pagefleet.error_code"
"""In the ASGI scope of a request that was answered with an error: its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiErrorBody:
    """What the client reads, and the status it comes with."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """The JSON value of the body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def encode(self) -> bytes:
        """The body, ASCII only, so that any text of the client's can be quoted."""
        return json.dumps(self.payload()).encode()

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer, as ASGI wants them."""
        headers = {"content-type": "application/json", "content-length": str(len(self.encode())), **self.headers}
        if self.status in (408, 413):
            headers["connection"] = "close"  # the rest of the body is not wanted
        return [(name.encode(), value.encode()) for name, value in headers.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFields:
    """What an error says."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """The body of every error, as the OpenAPI document shows it."""

    error: ErrorFields


class ApiError(Exception):
    """Ends a request with `body`."""

    def __init__(self, body: ApiErrorBody) -> None:
        super().__init__(body.message)
        self.body = body


def invalid(message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> ApiError:
    """The client has to change the request; `param` names the field."""
    return ApiError(ApiErrorBody(status=status, message=message, param=param, code=code))


def unsupported(param: str) -> ApiError:
    """A field that this API knows and this engine does not serve."""
    return invalid(f"{param} is not supported by this engine: leave it out", param=param, code="unsupported_parameter")


def unknown_model(name: str, served: tuple[str, ...]) -> ApiError:
    """The model asked for is not served here."""
    message = f"model {shorten(name)} does not exist here: use {', '.join(served)}"
    return invalid(message, param="model", code="model_not_found", status=404)


def context_overflow(num_prompt: int, num_output: int, longest: int, *, param: str) -> ApiError:
    """Prompt and answer do not fit. Client libraries look for "prompt is too long" and "maximum context length"."""
    message = (
        f"the prompt is too long: the maximum context length is {longest} tokens, but this request needs "
        f"{num_prompt + num_output}: {num_prompt} in the prompt and {num_output} for the answer; "
        "shorten the prompt or ask for fewer tokens"
    )
    return invalid(message, param=param, code="context_length_exceeded")


def queue_full(message: str, retry_after_s: float, *, closes: bool = False) -> ApiError:
    """Alive, but too much waits already. `closes`: part of the request has not been read, so the connection ends."""
    headers = {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    if closes:
        headers["connection"] = "close"
    return ApiError(
        ApiErrorBody(status=429, message=message, type="rate_limit_error", code="queue_full", headers=headers)
    )


def unavailable(message: str, code: str, retry_after_s: float = 1.0) -> ApiError:
    """Not now, not here: loading, draining or stopped."""
    return ApiError(
        ApiErrorBody(
            status=503,
            message=message,
            type="service_unavailable_error",
            code=code,
            headers={"retry-after": str(max(1, math.ceil(retry_after_s)))},
        )
    )


def unauthorised(message: str, code: str) -> ApiError:
    """No credential, or one that is not accepted; the message does not say which."""
    headers = {"www-authenticate": "Bearer"}
    return ApiError(ApiErrorBody(status=401, message=message, code=code, headers=headers))


def internal(message: str = "the engine failed on this request") -> ApiError:
    """A fault of ours."""
    return ApiError(ApiErrorBody(status=500, message=message, type="internal_error", code="internal_error"))


def shorten(text: str, limit: int = 80) -> str:
    """A client's text as it may be quoted in a message: printable, quoted, bounded."""
    quoted = repr(text[:limit])
    return quoted if len(text) <= limit else quoted + "..."

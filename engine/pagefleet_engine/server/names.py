"""What a request is called: by its client, who may choose the name, and inside the engine, where nobody may."""

from __future__ import annotations

import re
from typing import Final, TypedDict
from uuid import uuid4

from starlette.requests import Request

from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.schemas import GenerationBody

_LABEL: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""As in the header of every answer."""


class Names(TypedDict):
    """Fields of a `Job`."""

    id: str
    key: str


def names(request: Request, body: GenerationBody, kind: str) -> Names:
    """`request_id` or a usable `X-Request-Id` becomes part of the answer's id. Raises `ApiError`."""
    given = body.request_id
    if given is not None and not _LABEL.fullmatch(given):
        message = "request_id: must be 1 to 128 letters, digits, '.', '_', ':' or '-'"
        raise invalid(message, param="request_id")
    header = request.headers.get("x-request-id", "")
    label = given or (header if _LABEL.fullmatch(header) else uuid4().hex)
    return Names(id=f"{kind}-{label}", key=f"{kind}-{uuid4().hex}")

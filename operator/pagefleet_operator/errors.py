"""What can go wrong at the operator's edges.

OperatorError
├── ApiError            the API server refused a call
│   ├── NotFoundError
│   ├── AlreadyExistsError
│   ├── ConflictError   somebody changed the object since it was read
│   └── NamespaceEndsError  nothing can be made there any more
├── UnreachableError    no answer, or none in time
├── EngineUnreachableError  an engine gave no answer, or none in time
│   └── NoSigningKeyError   an engine was not even asked: there is no key to sign with
├── EngineRefusedError  an engine answered with an error
│   └── GenerationConflictError  its configuration was changed since it was read
└── LeaseLostError      another operator may be active: stop at once
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

NAMESPACE_TERMINATING: Final = "NamespaceTerminating"
"""The cause that the API server gives beside the reason Forbidden."""


class OperatorError(Exception):
    """Anything that the operator's own code raises."""


class ApiError(OperatorError):
    """The API server answered with an error; `status` is the HTTP status, `reason` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or f"{status} {reason}")
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """The object, or the whole resource, is not there."""


class AlreadyExistsError(ApiError):
    """An object of that name is there, ours or not."""


class ConflictError(ApiError):
    """The object changed since it was read; read it again."""


class NamespaceEndsError(ApiError):
    """The object's namespace is being terminated: it takes nothing new, and what is in it goes."""


class UnreachableError(OperatorError):
    """The API server did not answer; the message says what was tried."""


class EngineUnreachableError(OperatorError):
    """An engine did not answer in time, or not in full; the message names the pod and says what was tried."""


class NoSigningKeyError(EngineUnreachableError):
    """The operator has no signing key at the moment, so no control API will listen to it."""


class EngineRefusedError(OperatorError):
    """An engine answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GenerationConflictError(EngineRefusedError):
    """The engine's configuration has another generation by now; read it again."""


class LeaseLostError(OperatorError):
    """This process may no longer write: its lease is gone or could not be renewed in time."""


def api_error(status: int, reason: str, message: str, causes: Collection[str] = ()) -> ApiError:
    """The right class for an error answer of the API server."""
    if status == 404:
        return NotFoundError(status, reason, message)
    if status == 409:
        return (AlreadyExistsError if reason == "AlreadyExists" else ConflictError)(status, reason, message)
    if status == 403 and NAMESPACE_TERMINATING in causes:
        return NamespaceEndsError(status, reason, message)
    return ApiError(status, reason, message)

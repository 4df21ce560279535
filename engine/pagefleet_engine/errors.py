"""The engine's exceptions.

EngineError
├── StartupError        the engine cannot run with what it was given; exit code 2, restarting will not help
├── RequestRefused      this request can never be served as it is (400), with the numbers
├── QueueFull           too many requests wait (429); says when to come back
└── EngineDead          the step loop has ended; every later call gets this
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of what the engine raises on purpose; the message is one line for a person."""


class StartupError(EngineError):
    """Names the flag or the file, and the remedy."""


class RequestRefused(EngineError):
    """The request can never be served; `param` names the field of the request that the client should change."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(EngineError):
    """The queue has no place left. `retry_after_s` comes from the measured drain rate."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDead(EngineError):
    """The step loop ended, on `close` or by a fault; the message says which."""

"""What the engine says when it cannot serve a request, as a client reads it."""

from __future__ import annotations

from pagefleet_engine.api import TokenOutput
from pagefleet_engine.errors import EngineDead, QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.errors import ApiError, internal, invalid, queue_full, unavailable


def translate(error: RequestRefused | QueueFull | EngineDead) -> ApiError:
    """The engine's refusals as a client reads them."""
    if isinstance(error, RequestRefused):
        return invalid(str(error), param=error.param)
    if isinstance(error, QueueFull):
        return queue_full(str(error), error.retry_after_s)
    return unavailable("the engine has stopped: try again elsewhere", "engine_stopped")


def raise_on_failure(output: TokenOutput, reason: FinishReason) -> None:
    """`reason` is why the answer has ended, as far as anybody knows by now."""
    if reason is FinishReason.ERROR and output.is_client_error:
        raise invalid(f"the requested structure cannot be followed: {output.error}")
    if reason is FinishReason.ERROR:
        raise internal(f"the engine failed on this request: {output.error or 'no reason given'}")
    if output.finish_reason is FinishReason.ABORT:
        raise unavailable("this engine is shutting down and could not finish the request", "aborted")

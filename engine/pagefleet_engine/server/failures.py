"""What the engine says when it cannot serve a request, as a client reads it."""

from __future__ import annotations

import logging
import traceback

from pagefleet_engine.api import TokenOutput
from pagefleet_engine.errors import EngineDead, QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.errors import ApiError, internal, invalid, queue_full, unavailable

log = logging.getLogger(__name__)


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


def refuse_failed_work(error: Exception, *, param: str) -> ApiError:
    """Work on a client's text failed in a way that nobody foresaw.

    It is this text that fails, so its sender has to change it. The log gets the place and not the error's own words,
    which may hold the text.
    """
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("work on %s failed: %s in %s, line %s", param, type(error).__name__, place.name, place.lineno)
    return invalid(f"{param}: cannot be processed: change or shorten it", param=param)

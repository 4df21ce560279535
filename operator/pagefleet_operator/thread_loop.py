"""Runs a coroutine in a thread with an event loop of its own, for libraries that take a whole loop for themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

logger = logging.getLogger(__name__)

STOP_WITHIN_S: Final = 5.0


async def run_in_thread(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Returns when the coroutine does, and raises what it raises.

    Cancelling this cancels the coroutine and waits for it a few seconds; then the thread, a daemon, is left behind.
    """
    outer, inner = asyncio.get_running_loop(), asyncio.new_event_loop()
    inner.set_exception_handler(_say_in_a_line)
    task = inner.create_task(work)
    ended: asyncio.Future[BaseException | None] = outer.create_future()

    def body() -> None:
        error = _run(inner, task)
        with suppress(RuntimeError):  # nobody waits any more: the outer loop is closed
            outer.call_soon_threadsafe(_finish, ended, error)

    threading.Thread(target=body, name=name, daemon=True).start()
    try:
        error = await asyncio.shield(ended)
    except asyncio.CancelledError:
        inner.call_soon_threadsafe(task.cancel)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await ended
        raise
    if error is not None:
        raise error


def _say_in_a_line(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a library's own tasks left unread when it failed: it comes with the garbage, so at any time and place."""
    logger.warning("%s: %r", context["message"], context.get("exception"))


def _finish(ended: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not ended.done():
        ended.set_result(error)


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> BaseException | None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(task)
    except BaseException as error:
        return error
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    return None

"""Notices that a client has left, for as long as its request lasts.

ASGI tells it through `receive`, which has one reader: after the body has been read, that is this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.types import Receive

from pagefleet_engine.server.body import ClientGone

T = TypeVar("T")


class Departure:
    """Waits for the disconnect in a task of its own until `close`."""

    def __init__(self, receive: Receive) -> None:
        self._gone = asyncio.create_task(_until_disconnect(receive))

    async def race(self, work: Awaitable[T]) -> T:
        """Result of `work`, which is cancelled when the client leaves first. Raises `ClientGone` then."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                await give_up(task)
        raise ClientGone

    def close(self) -> None:
        self._gone.cancel()


async def give_up(task: asyncio.Future[Any]) -> None:
    """Returns when the task has ended, however it does."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # nobody else will ask


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

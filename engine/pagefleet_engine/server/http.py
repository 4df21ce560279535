"""The HTTP server: Granian, in this process and on this event loop, under our own signals.

Its choice, and what it was measured against, is in `docs/decisions/0001-asgi-server.md`. Nothing else imports it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from starlette.types import ASGIApp

from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.limits import Limits

_BACKLOG = 1024
_POLL_S = 0.005


class HttpServer:
    """Listens from `start` until `stop`, which lets the responses that have begun run to their end."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, limits: Limits) -> None:
        self._host = host
        self._port = port
        self._threads: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None
        for name in ("granian", "_granian"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._server = Server(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=limits.connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(limits.header_timeout_s * 1000), max_buffer_size=limits.header_bytes
            ),
            log_enabled=False,
        )

    async def start(self) -> asyncio.Task[None]:
        """Begin to listen. The task ends when the server does. Raises `StartupError` when the port is taken."""
        check_port(self._host, self._port)
        others = _native_threads()
        self._task = asyncio.create_task(self._server.serve())
        for _ in range(3):  # the server's task, its worker's task, and back to us: nothing else gets to start a thread
            await asyncio.sleep(0)
        self._threads = _native_threads() - others
        return self._task

    async def stop(self, *, timeout_s: float) -> bool:
        """Close the listener and the idle connections; False when some response did not end in time.

        Granian says that it has stopped while its threads still run, and a thread that outlives the interpreter aborts
        the process: so they are waited for.
        """
        if self._task is None:
            return True
        self._server.stop()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({self._task})
                while self._threads & _native_threads():  # noqa: ASYNC110 (the kernel announces no thread's end)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return False
        return True


def _native_threads() -> frozenset[str]:
    return frozenset(os.listdir("/proc/self/task"))


def check_port(host: str, port: int) -> None:
    """Granian binds with SO_REUSEPORT, under which two engines would share a port without a word: look first."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "choose another --port, or another --host"
            raise StartupError(f"--port {port}: cannot listen on {host}: {error.strerror}; {remedy}") from None

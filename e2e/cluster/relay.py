"""Carry TCP connections from the host's loopback to an address inside the cluster's network.

A socket belongs to the network namespace of the thread that made it: the listener is made on the host, and the thread
that connects has moved into the cluster's namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from types import TracebackType

from e2e.cluster.namespaces import join_network

CHUNK_BYTES = 1 << 16
CONNECT_TIMEOUT_S = 10.0


class Relay:
    """Listens until it is closed. Use it as a context manager, or keep it as long as it is needed."""

    def __init__(self, holder: int, target: tuple[str, int], listener: socket.socket | None = None) -> None:
        """Start relaying to `target`, an IP address and port inside. Raises OSError when the namespace is gone."""
        self._listener = listener or bind_loopback()
        self.address: tuple[str, int] = self._listener.getsockname()
        """Where to connect to: 127.0.0.1 and a port."""
        self._target = target
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(holder,), name=f"relay to {target}", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Stop listening and cut what is open."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, holder: int) -> None:
        try:
            join_network(holder)
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._started.set()
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._relay(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        server = await asyncio.start_server(accept, sock=self._listener)
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    far_reader, far_writer = await asyncio.open_connection(*self._target)
            except (OSError, TimeoutError):
                return
            with contextlib.closing(far_writer):
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end, then say so to the other side; a broken connection ends it too."""
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


def bind_loopback(port: int = 0) -> socket.socket:
    """A listening socket on 127.0.0.1, in the calling thread's namespace."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    listener.listen(128)
    return listener

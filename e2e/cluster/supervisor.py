"""Start the cluster and keep its processes running, until told to stop or until the holder dies.

Runs as a process of its own: `python -m e2e.cluster.supervisor STATE PROGRAMS`. The holder dies with it, so the
cluster never runs unattended.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from e2e.cluster.cgroups import create_cgroup, list_hierarchies
from e2e.cluster.errors import ClusterError, StartError
from e2e.cluster.layout import API_PORT, FIRST_RELAY_PORT, Layout
from e2e.cluster.logs import open_log, trim_logs
from e2e.cluster.namespaces import enter_argv, prepare, start_holder
from e2e.cluster.processes import Process, list_base_processes, list_client_processes
from e2e.cluster.relay import Relay, bind_loopback
from e2e.cluster.state import ProcessId, Record, look_up_process, read_boot_id, write_record

FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
SETTLED_S = 30.0
"""A process that ran this long starts again without delay."""
LOG_CHECK_S = 10.0


def next_backoff(last_s: float, ran_s: float) -> float:
    """How long to wait before the next start of a process that ran for `ran_s` seconds."""
    return FIRST_BACKOFF_S if ran_s >= SETTLED_S else min(max(2 * last_s, FIRST_BACKOFF_S), MAX_BACKOFF_S)


async def keep_running(process: Process, holder: int, layout: Layout, say: Callable[[str], None]) -> None:
    """Start a process whenever it is not there. Its ports are free again by then: it has been waited for."""
    backoff_s = 0.0
    argv = enter_argv(holder, process.argv)
    environ = {**os.environ, **process.environ}
    while True:
        began = time.monotonic()
        with open_log(layout.logs, process.name) as log:
            running = await asyncio.create_subprocess_exec(
                *argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd="/"
            )
        code = await running.wait()
        ran_s = time.monotonic() - began
        backoff_s = next_backoff(backoff_s, ran_s)
        say(f"{process.name} ended with code {code} after {ran_s:.1f} s; next start in {backoff_s:.1f} s")
        await asyncio.sleep(backoff_s)


async def bound_logs(layout: Layout) -> None:
    """Keep every log file short."""
    while True:
        await asyncio.sleep(LOG_CHECK_S)
        trim_logs(layout.logs)


async def wait_for_server(port: int) -> None:
    """Return when the API server answers TLS through the relay."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only asks whether someone is there
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.close()
            return
        await asyncio.sleep(0.05)


def take_lock(layout: Layout) -> TextIO:
    """Hold the lock of a cluster's only supervisor until the file is closed. Raises `StartError` when one runs."""
    lock = layout.supervisor_lock.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise StartError("this cluster is starting already; try again in a few seconds") from None
    return lock


async def run(layout: Layout, programs: Path) -> None:
    """The whole life of one cluster. Ends when the process is told to stop or the holder is gone."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    hierarchies = list_hierarchies()
    for node in layout.nodes:
        create_cgroup(layout.cgroup(node), hierarchies)
    listener = choose_port()
    launcher, holder = start_holder(programs / "pause")
    try:
        prepare(holder, layout)
        relay = Relay(holder, ("127.0.0.1", API_PORT), listener)
        write_record(layout.record, make_record(holder, relay.address[1], programs))
        await supervise(layout, programs, holder, relay.address[1], stop)
    finally:
        launcher.kill()
        launcher.wait()


async def supervise(layout: Layout, programs: Path, holder: int, port: int, stop: asyncio.Event) -> None:
    """Run everything until `stop` is set or the holder is gone."""

    def say(line: str) -> None:
        print(f"{time.strftime('%FT%T')} {line}", flush=True)

    def keep(processes: list[Process]) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(keep_running(process, holder, layout, say)) for process in processes]

    ending = asyncio.create_task(stop.wait()), asyncio.create_task(wait_for_end(holder))
    tasks = [*keep(list_base_processes(layout, programs)), asyncio.create_task(bound_logs(layout))]
    server = asyncio.create_task(wait_for_server(port))
    await asyncio.wait((*ending, *tasks, server), return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        say("the API server answers")
        tasks += keep(list_client_processes(layout, programs))
        await asyncio.wait((*ending, *tasks), return_when=asyncio.FIRST_COMPLETED)
    say("stopping" if stop.is_set() else "the holder is gone" if ending[1].done() else "failed")
    for task in (*tasks, *ending, server):
        task.cancel()
    for outcome in await asyncio.gather(*tasks, *ending, server, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def wait_for_end(pid: int) -> None:
    """Return when a process that need not be a child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def choose_port() -> socket.socket:
    """The usual port if it is free, so that people can rely on it, else any."""
    try:
        return bind_loopback(FIRST_RELAY_PORT)
    except OSError:
        return bind_loopback()


def make_record(holder: int, port: int, programs: Path) -> Record:
    """Who runs."""

    def identify(pid: int) -> ProcessId:
        started = look_up_process(pid)
        if started is None:
            raise StartError("the holder ended at once")
        return ProcessId(pid=pid, started_ticks=started)

    return Record(
        boot_id=read_boot_id(),
        supervisor=identify(os.getpid()),
        holder=identify(holder),
        api_port=port,
        programs=str(programs),
    )


def main(state: str, programs: str) -> int:
    """The outermost loop of the supervisor's process."""
    layout = Layout(state=Path(state))
    try:
        with take_lock(layout):
            asyncio.run(run(layout, Path(programs)))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The engine process from its first log line to its exit code: listen, load, serve, drain, stop."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pagefleet_engine.api import Engine
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import POD_UID_VARIABLE
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.app import create_app
from pagefleet_engine.server.control.opening import Opening
from pagefleet_engine.server.control.side import ControlSide, build_control_side
from pagefleet_engine.server.control.start_file import read_start
from pagefleet_engine.server.control.state_file import StateFile
from pagefleet_engine.server.drain import Drain, StopSignals
from pagefleet_engine.server.http import HttpServer
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.watchdog import Watchdog, end_process

log = logging.getLogger(__name__)

Load = Callable[[EngineArguments], Awaitable[Engine]]

_WATCH_INTERVAL_S = 1.0
_CUT_TIMEOUT_S = 2.0
"""How long cut responses have to tell their clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the process ended."""

    reason: str
    exit_code: int
    clean: bool = True
    """No thread is left that loads a model or serves a connection; else the interpreter must not be torn down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the stages of a process share."""

    arguments: EngineArguments
    load: Load
    signals: StopSignals
    service: Service
    drain: Drain
    control: ControlSide | None
    opening: Opening
    servers: tuple[HttpServer, ...]
    close_timeout_s: float


async def serve(
    arguments: EngineArguments,
    *,
    load: Load,
    limits: Limits,
    signals: StopSignals,
    environ: Mapping[str, str],
    close_timeout_s: float = 10.0,
) -> Ending:
    """Runs until told to stop; the engine then has `close_timeout_s` to end its step loop.

    Raises `StartupError` for what the user has to change.
    """
    limits = limits.with_queue_of(arguments)
    log.info("limits: %s", " ".join(limits.lines()))
    _allow_connections(limits)
    process = _build(arguments, load, limits, signals, environ, close_timeout_s)
    stopped = True
    try:
        listening = [await server.start() for server in process.servers]
        log.info("listening on %s:%d, loading %s", arguments.host, arguments.port, arguments.model)
        ending = await _load_and_run(process, listening)
    finally:
        await _settle(process.service)
        for server in process.servers:
            stopped = await server.stop(timeout_s=_CUT_TIMEOUT_S) and stopped
        process.service.text.close()
        process.service.structured.close()
    if not stopped:
        log.info("a thread of the HTTP server has not ended; leaving without it")
    return replace(ending, clean=ending.clean and stopped)


def _build(
    arguments: EngineArguments,
    load: Load,
    limits: Limits,
    signals: StopSignals,
    environ: Mapping[str, str],
    close_timeout_s: float,
) -> Process:
    start = read_start(arguments)
    state = None if arguments.state_dir is None else StateFile(Path(arguments.state_dir))
    # Of the pod too, so that the pods of a service do not all choose the same turns.
    seed = f"{arguments.seed}/{environ.get(POD_UID_VARIABLE, '')}"
    service = Service(
        limits=limits,
        served_names=arguments.served_model_name,
        seed=seed,
        tool_call_parser=arguments.tool_call_parser,
    )
    key_file = arguments.api_key_file
    api_keys = None if key_file is None else ApiKeys(Path(key_file), monotonic=service.monotonic)
    app = create_app(service, api_keys=api_keys)
    public = HttpServer(app, host=arguments.host, port=arguments.port, limits=limits)
    drain = Drain(service.lifecycle, grace_s=arguments.drain_grace)
    control = build_control_side(service, drain, arguments, environ)
    return Process(
        arguments=arguments,
        load=load,
        signals=signals,
        service=service,
        drain=drain,
        control=control,
        opening=Opening(arguments=arguments, start=start, state=state, service=service),
        servers=(public,) if control is None else (public, control.server),
        close_timeout_s=close_timeout_s,
    )


async def _load_and_run(process: Process, listening: list[asyncio.Task[None]]) -> Ending:
    engine = await _load_unless_stopped(process.arguments, process.load, process.signals)
    if engine is None:
        return Ending(reason="told to stop while loading", exit_code=0, clean=False)
    service = process.service
    try:
        runtime = await process.opening.attach(engine)
    except StartupError:
        await _close(engine, process.close_timeout_s)
        raise
    if process.control is not None:
        process.control.attach(runtime)
    log.info("ready: %s", _summary(service))
    watchdog = Watchdog(stats=service.stats, monotonic=service.monotonic, give_up=end_process)
    watchdog.start()
    try:
        ending = await _run(process, listening)
    finally:
        watchdog.stop()
        closed = await _close(engine, process.close_timeout_s)
    return replace(ending, clean=closed)


async def _close(engine: Engine, timeout_s: float) -> bool:
    """False when the step loop is stuck and does not end: the process then has to leave without it."""
    closing = asyncio.ensure_future(engine.close())
    done, _ = await asyncio.wait({closing}, timeout=timeout_s)
    if not done:
        log.error("the step loop does not end; leaving without it")
    return bool(done)


async def _load_unless_stopped(arguments: EngineArguments, load: Load, signals: StopSignals) -> Engine | None:
    loading = asyncio.ensure_future(load(arguments))
    stopping = asyncio.create_task(signals.drain.wait())
    try:
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return loading.result() if loading.done() else None
    finally:
        loading.cancel()
        stopping.cancel()


async def _run(process: Process, listening: list[asyncio.Task[None]]) -> Ending:
    stopping = asyncio.create_task(process.signals.drain.wait())
    watching = asyncio.create_task(_until_fatal(process.service))
    try:
        await asyncio.wait({stopping, watching, *listening}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            return Ending(reason=f"the engine has stopped: {watching.result()}", exit_code=1)
        if any(task.done() for task in listening):
            return Ending(reason="the HTTP server has stopped", exit_code=1)
        leaving = asyncio.create_task(process.drain.leave(process.signals, timeout_s=process.arguments.drain_timeout))
        await asyncio.wait({leaving, watching}, return_when=asyncio.FIRST_COMPLETED)
        complete = leaving.done() and leaving.result()
        return Ending(reason="drained" if complete else "stopped with requests in flight", exit_code=0)
    finally:
        stopping.cancel()
        watching.cancel()


async def _until_fatal(service: Service) -> str:
    """Looks at the engine now and then; it also keeps the measure of progress current while nobody asks."""
    while True:
        stats = service.engine.stats()
        if stats.fatal is not None:
            return stats.fatal
        service.health_problem()
        await asyncio.sleep(_WATCH_INTERVAL_S)


async def _settle(service: Service) -> None:
    """Give responses that were cut the time to say so."""
    waiting = asyncio.create_task(service.lifecycle.wait_idle())
    await asyncio.wait({waiting}, timeout=_CUT_TIMEOUT_S)
    waiting.cancel()


def _summary(service: Service) -> str:
    stats = service.engine.stats()
    frames = sum(stats.frames.values())
    return (
        f"model {', '.join(service.served_names)}, context {stats.max_model_len} tokens, "
        f"{stats.cap} of {stats.capacity} sequences, {frames} frames, tool calls as {service.tool_form.name}"
    )


def _allow_connections(limits: Limits) -> None:
    """Raise the soft limit on open files, as far as it goes, to what the connection limit needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise StartupError(f"the limit on open files is {hard}: raise it to {wanted} (ulimit -n)")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

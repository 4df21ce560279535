"""The operator as a process: what runs beside what, from the first probe to the lease's return."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any, Final

from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from pagefleet_operator.alert_server import AlertServer, serve_alerts
from pagefleet_operator.alerts import AlertBook
from pagefleet_operator.api_server import ApiServer
from pagefleet_operator.connect import load_configuration, wait_for_resource
from pagefleet_operator.control.asking import MOST_AT_ONCE, MOST_SILENT
from pagefleet_operator.control.autoscalers import Autoscalers
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.control.loop import MOST_SET_AT_ONCE, ControlLoop
from pagefleet_operator.engine_client import EngineClient
from pagefleet_operator.handlers import Watches
from pagefleet_operator.health import Health, serve_health
from pagefleet_operator.labels import Key
from pagefleet_operator.lease import LeaseHolder
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.resync import Resync
from pagefleet_operator.settings import OperatorSettings
from pagefleet_operator.signing_keys import SigningKeys
from pagefleet_operator.work_queue import WorkQueue

logger = logging.getLogger(__name__)
SILENCE_MARGIN_S: Final = 60.0
LOOP_CONNECTIONS: Final = MOST_AT_ONCE + MOST_SILENT + MOST_SET_AT_ONCE


async def run(settings: OperatorSettings, environ: Mapping[str, str], stop: asyncio.Event) -> None:
    """Run until `stop`. Raises `LeaseLostError`; `OperatorError` without credentials; `OSError` for a taken port."""
    metrics = OperatorMetrics(CollectorRegistry())
    health = Health(monotonic=time.monotonic, max_silence_s=2 * settings.resync_s + SILENCE_MARGIN_S)
    configuration = await load_configuration(environ)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(configuration, metrics, health.answered))
        runner = await serve_health(health, metrics.registry, settings.health_port)
        stack.push_async_callback(runner.cleanup)
        outside = _Outside(
            settings=settings,
            configuration=configuration,
            server=server,
            metrics=metrics,
            health=health,
            identity=f"{socket.gethostname()}_{token_hex(4)}",
        )
        await until_first(stop.wait(), _work(outside))
    logger.info("stopped")


async def until_first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Run all until one ends, cancel the others and wait for them, and raise what the one raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outside:
    """What the whole process shares."""

    settings: OperatorSettings
    configuration: Configuration
    server: ApiServer
    metrics: OperatorMetrics
    health: Health
    identity: str


async def _work(outside: _Outside) -> None:
    settings, health = outside.settings, outside.health
    await wait_for_resource(outside.server, random.random, health.beat)
    lease = LeaseHolder(
        outside.server,
        Key(settings.lease_namespace, settings.lease_name),
        outside.identity,
        clock=_now,
        monotonic=time.monotonic,
        on_attempt=health.beat,
    )
    await lease.acquire()
    outside.metrics.active.set(1)
    try:
        await until_first(lease.hold(), _reach_engines(outside))
    finally:
        await lease.release()


async def _reach_engines(outside: _Outside) -> None:
    """Keys and client for the engines, kept for as long as the work goes on."""
    settings = outside.settings
    keys = SigningKeys(
        outside.server,
        Key(settings.signing_secret_namespace, settings.signing_secret_name),
        metrics=outside.metrics,
        clock=_now,
        make_seed=partial(token_bytes, 32),
        max_age=timedelta(days=settings.signing_key_days),
    )
    await keys.refresh()
    async with (
        EngineClient(keys, time.time) as engines,
        EngineClient(keys, time.time, max_connections=LOOP_CONNECTIONS) as looked_at,
    ):
        await until_first(keys.run(), _serve(outside, keys, engines, looked_at))


async def _serve(outside: _Outside, keys: SigningKeys, engines: EngineClient, looked_at: EngineClient) -> None:
    """`engines` are asked by reconciles, `looked_at` by the control loop: neither waits for the other's turns."""
    settings, server, metrics = outside.settings, outside.server, outside.metrics
    fleets = Fleets(public_keys=keys.public_text)
    reconciler = Reconciler(
        cluster=server, metrics=metrics, clock=_now, identity=outside.identity, engines=engines, fleets=fleets
    )
    queue = WorkQueue(reconciler, metrics=metrics, random=random.random)
    watches = Watches(
        wake=queue.add,
        configuration=outside.configuration,
        namespaces=settings.namespaces,
        metrics=metrics,
        random=random.random,
        until_served=partial(wait_for_resource, server, random.random),
    )
    resync = Resync(
        cluster=server,
        add=queue.add,
        health=outside.health,
        clock=_now,
        random=random.random,
        namespaces=settings.namespaces,
        period_s=settings.resync_s,
        fleets=fleets,
    )
    book = AlertBook()
    loop = ControlLoop(
        fleets=fleets,
        engines=looked_at,
        autoscalers=Autoscalers(cluster=server),
        alerts=book,
        wake=queue.add,
        metrics=metrics,
        monotonic=time.monotonic,
        clock=_now,
        random=random.random,
        settings=LoopSettings().paced(settings.loop_pace),
    )
    async with _alerts(outside, book, fleets, loop):
        await until_first(queue.run(settings.workers), watches.run(), resync.run(), loop.run())


@asynccontextmanager
async def _alerts(outside: _Outside, book: AlertBook, fleets: Fleets, loop: ControlLoop) -> AsyncIterator[None]:
    """The server for Alertmanager, where a token for it is given. Raises `OSError` for a taken port."""
    if outside.settings.alert_token_file is None:
        yield
        return
    server = AlertServer(
        token_file=Path(outside.settings.alert_token_file),
        book=book,
        known=fleets.observations,
        wake=loop.hint,
        metrics=outside.metrics,
        monotonic=time.monotonic,
    )
    runner = await serve_alerts(server, outside.settings.alert_port)
    try:
        yield
    finally:
        await runner.cleanup()


def _now() -> datetime:
    return datetime.now(UTC)

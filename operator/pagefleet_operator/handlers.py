"""Kopf, used for the one thing it is best at here: watches that survive silence, 410s, throttling and outages.

Its handlers only turn an event into the key of an LLMService. It keeps no state on objects (no finalizer, no progress,
no annotation: `on.event` handlers have none), and it runs in a thread with an event loop of its own, because it cancels
every task of its loop when it ends, ours included. If it ends, it is started again; the resync covers the gap.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import kopf
from kubernetes.aio.client import Configuration

from pagefleet_operator import labels
from pagefleet_operator.api import v1alpha1
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD, SERVICE, Object, Resource
from pagefleet_operator.thread_loop import run_in_thread

logger = logging.getLogger(__name__)
CHILDREN: Final = (POD, SERVICE, BUDGET)
LONGEST_BACK_OFF_S: Final = 15.0
RESTART_AFTER_S: Final = 5.0

Wake = Callable[[Key], None]


def owner_key(raw: Object) -> Key | None:
    """The LLMService that an object belongs to; None for an object of somebody else."""
    metadata = raw["metadata"]
    for reference in metadata.get("ownerReferences", ()):
        group = reference["apiVersion"].partition("/")[0]
        if reference.get("controller") and (group, reference["kind"]) == (v1alpha1.GROUP, v1alpha1.KIND):
            return Key(metadata["namespace"], reference["name"])
    return None


def build_registry(wake: Wake, configuration: Configuration) -> kopf.OperatorRegistry:
    """Handlers for services and their children; each only wakes the service."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(configuration)

    @kopf.on.event(*_selector(LLM_SERVICE), registry=registry)
    async def service_event(body: kopf.Body, **_: Any) -> None:
        wake(Key(str(body.metadata.namespace), str(body.metadata.name)))

    async def child_event(body: kopf.Body, **_: Any) -> None:
        key = owner_key({"metadata": dict(body.metadata)})
        if key is not None:
            wake(key)

    for resource in CHILDREN:
        kopf.on.event(*_selector(resource), registry=registry, id=f"child-{resource.plural}")(child_event)
    return registry


def build_kopf_settings(random: Callable[[], float]) -> kopf.OperatorSettings:
    """Endless jittered back-off instead of Kopf's 54 seconds, time limits, and nothing written to any object."""
    settings = kopf.OperatorSettings()
    settings.networking.error_backoffs = BackOffs(random)
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.chunk_size = 500
    for resource in CHILDREN:
        settings.watching.label_selectors[_selector(resource)] = labels.MANAGED_SELECTOR
    settings.scanning.disabled = True  # the resources are known to be there, and this way no cluster rights are needed
    settings.peering.standalone = True  # our Lease decides who is active
    settings.posting.enabled = False  # events are decided in `plan`
    settings.process.ultimate_exiting_timeout = None
    prefix = v1alpha1.GROUP
    settings.persistence.finalizer = f"{prefix}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=prefix)
    return settings


async def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """The client's own configuration for Kopf: its stock logins need cluster DNS or know fewer kinds of credentials."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if header else None,
        token=header.split(" ", 1)[-1] if header else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


@dataclass(frozen=True, slots=True)
class BackOffs:
    """An endless series of waits, 1 to 15 s, half of each random. Kopf iterates over it anew for every request."""

    random: Callable[[], float]

    def __iter__(self) -> Iterator[float]:
        for attempt in itertools.count():
            longest = min(LONGEST_BACK_OFF_S, 2.0 ** min(attempt, 10))
            yield longest * (0.5 + 0.5 * self.random())


class Watches:
    """Kopf in its thread. `run` returns only by cancellation."""

    def __init__(
        self,
        *,
        wake: Wake,
        configuration: Configuration,
        namespaces: tuple[str, ...],
        metrics: OperatorMetrics,
        random: Callable[[], float],
        until_served: Callable[[], Awaitable[None]],
        restart_after_s: float = RESTART_AFTER_S,
    ) -> None:
        self._until_served = until_served
        self._restart_after_s = restart_after_s
        self._wake = wake
        self._configuration = configuration
        self._namespaces = namespaces
        self._metrics = metrics
        self._random = random

    async def run(self) -> None:
        """Watch until cancelled; whatever ends Kopf, it is started again once the resource is served."""
        while True:
            await self._until_served()
            await self._run_once()
            self._metrics.watch_restarts.inc()
            logger.warning("the watches ended; they start again in %.0f s", self._restart_after_s)
            await asyncio.sleep(self._restart_after_s)

    async def _run_once(self) -> None:
        loop = asyncio.get_running_loop()

        def wake(key: Key) -> None:
            loop.call_soon_threadsafe(self._wake, key)

        watching = kopf.operator(
            registry=build_registry(wake, self._configuration),
            settings=build_kopf_settings(self._random),
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
        )
        try:
            await run_in_thread("kopf", watching)
        except Exception as error:
            # Kopf names what failed in its own log; whatever it is, starting again is the answer.
            logger.warning("the watches failed: %s", str(error) or type(error).__name__)


def _selector(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural

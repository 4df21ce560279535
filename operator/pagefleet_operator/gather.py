"""Reads services and their children, consistently with each other as far as separate reads can be."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from pagefleet_engine.contract.control import EngineState
from pagefleet_operator import labels
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.engines import EnginePod, Engines
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.observe import Gathered
from pagefleet_operator.pods import PodObservation, observe_pod
from pagefleet_operator.resources import BUDGET, ENDPOINT_SLICE, LLM_SERVICE, POD, SERVICE, Object

logger = logging.getLogger(__name__)
SLICE_SERVICE: Final = "kubernetes.io/service-name"


async def gather(key: Key, cluster: Cluster, engines: Engines | None = None) -> Gathered | None:
    """What there is of a service; None when the service itself is gone.

    Children with fixed names are read by name, so that an object of somebody else is seen, too. While pods drain, their
    engines and the endpoints are asked as well; an engine that does not answer is left out.
    """
    service = await cluster.get(LLM_SERVICE, key.namespace, key.name)
    if service is None:
        return None
    fixed = ((SERVICE, key.name), (SERVICE, labels.headless_name(key.name)), (BUDGET, key.name))
    pods = await cluster.find(POD, key.namespace, labels.pod_selector(key.name))
    found = await asyncio.gather(*(cluster.get(resource, key.namespace, name) for resource, name in fixed))
    named = {(resource.kind, name): raw for (resource, name), raw in zip(fixed, found, strict=True) if raw is not None}
    draining = [pod for pod in map(observe_pod, pods) if pod.draining]
    return Gathered(
        service=service,
        pods=tuple(pods),
        named=named,
        routed=await _routed(key, cluster) if draining else frozenset(),
        engine_states=await _engine_states(draining, engines) if engines else {},
    )


async def gather_all(namespace: str | None, cluster: Cluster) -> list[tuple[Key, Gathered]]:
    """All services of a namespace, or of all, in four reads.

    Objects of others that have a child's name are not seen here; such a service looks as if the child were missing.
    """
    managed = {labels.MANAGED_BY: labels.MANAGER}
    services = await cluster.find(LLM_SERVICE, namespace, {})
    pods: dict[Key, list[Object]] = defaultdict(list)
    for raw in await cluster.find(POD, namespace, managed):
        pods[_service_of(raw)].append(raw)
    named: dict[Key, dict[tuple[str, str], Object]] = defaultdict(dict)
    for resource in (SERVICE, BUDGET):
        for raw in await cluster.find(resource, namespace, managed):
            named[_service_of(raw)][resource.kind, raw["metadata"]["name"]] = raw
    keys = [Key(raw["metadata"]["namespace"], raw["metadata"]["name"]) for raw in services]
    return [
        (key, Gathered(service=service, pods=tuple(pods[key]), named=named[key]))
        for key, service in zip(keys, services, strict=True)
    ]


async def _routed(key: Key, cluster: Cluster) -> frozenset[str]:
    """The uids of the pods that the Service's endpoints list as ready."""
    slices = await cluster.find(ENDPOINT_SLICE, key.namespace, {SLICE_SERVICE: key.name})
    endpoints = [endpoint for raw in slices for endpoint in raw.get("endpoints") or ()]
    ready = (endpoint for endpoint in endpoints if endpoint.get("conditions", {}).get("ready") is not False)
    return frozenset(endpoint["targetRef"]["uid"] for endpoint in ready if "targetRef" in endpoint)


async def _engine_states(pods: Sequence[PodObservation], engines: Engines) -> dict[str, EngineState]:
    answers = await asyncio.gather(*(_engine_state(pod, engines) for pod in pods))
    return {pod.uid: answer for pod, answer in zip(pods, answers, strict=True) if answer is not None}


async def _engine_state(pod: PodObservation, engines: Engines) -> EngineState | None:
    if pod.ip is None or not pod.running:
        return None
    try:
        return await engines.read_state(EnginePod(name=pod.name, uid=pod.uid, ip=pod.ip))
    except (EngineUnreachableError, EngineRefusedError) as error:
        logger.warning("a draining engine gives no account of itself: %s", error)
        return None


def _service_of(raw: Object) -> Key:
    return Key(raw["metadata"]["namespace"], raw["metadata"]["labels"].get(labels.SERVICE, ""))

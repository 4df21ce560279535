"""Reads services and their children, consistently with each other as far as separate reads can be."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from pagefleet_operator import labels
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.labels import Key
from pagefleet_operator.observe import Gathered
from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD, SERVICE, Object


async def gather(key: Key, cluster: Cluster) -> Gathered | None:
    """What there is of a service; None when the service itself is gone.

    Children with fixed names are read by name, so that an object of somebody else is seen, too.
    """
    service = await cluster.get(LLM_SERVICE, key.namespace, key.name)
    if service is None:
        return None
    fixed = ((SERVICE, key.name), (SERVICE, labels.headless_name(key.name)), (BUDGET, key.name))
    pods = await cluster.find(POD, key.namespace, labels.pod_selector(key.name))
    found = await asyncio.gather(*(cluster.get(resource, key.namespace, name) for resource, name in fixed))
    named = {(resource.kind, name): raw for (resource, name), raw in zip(fixed, found, strict=True) if raw is not None}
    return Gathered(service=service, pods=tuple(pods), named=named)


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


def _service_of(raw: Object) -> Key:
    return Key(raw["metadata"]["namespace"], raw["metadata"]["labels"].get(labels.SERVICE, ""))

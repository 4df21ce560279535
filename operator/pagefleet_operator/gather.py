"""Reads one service and its children, consistently with each other as far as separate reads can be."""

from __future__ import annotations

import asyncio

from pagefleet_operator import labels
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.labels import Key
from pagefleet_operator.observe import Gathered
from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD, SERVICE


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

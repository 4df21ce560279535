"""The loop that cannot die: every so often it puts every service into the queue, whatever the watches have seen.

Its heartbeat is what liveness follows. An API server that does not answer costs one line per round, not the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pagefleet_operator.cluster import Cluster
from pagefleet_operator.errors import OperatorError
from pagefleet_operator.health import Health
from pagefleet_operator.labels import Key
from pagefleet_operator.resources import LLM_SERVICE

logger = logging.getLogger(__name__)


async def resync_for_ever(
    cluster: Cluster,
    add: Callable[[Key], None],
    health: Health,
    *,
    namespaces: tuple[str, ...],
    period_s: float,
    random: Callable[[], float],
) -> None:
    """Run until cancelled. This is one of the two outermost loops, so it survives whatever a round raises."""
    while True:
        health.beat()
        try:
            for key in await list_services(cluster, namespaces):
                add(key)
        except OperatorError as error:
            logger.warning("resync: trying again in about %.0f s: %s", period_s, error)
        except Exception:
            logger.exception("resync: trying again in about %.0f s after an error of the operator", period_s)
        await asyncio.sleep(period_s * (0.75 + 0.5 * random()))


async def list_services(cluster: Cluster, namespaces: tuple[str, ...]) -> list[Key]:
    """The keys of all services that are ours to look at."""
    found: list[Key] = []
    for namespace in namespaces or (None,):
        for raw in await cluster.find(LLM_SERVICE, namespace, {}):
            found.append(Key(raw["metadata"]["namespace"], raw["metadata"]["name"]))
    return found

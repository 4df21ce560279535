"""Whether somebody else's autoscaler writes the replicas of a service that the operator scales.

Read at most once a minute for each namespace, beside the looks: none of them waits for the API server. KEDA's kind need
not be there.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Final

from pagefleet_operator.api.v1alpha1 import GROUP, KIND
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.errors import ApiError, NotFoundError, OperatorError
from pagefleet_operator.labels import Key
from pagefleet_operator.resources import AUTOSCALER, SCALED_OBJECT

logger = logging.getLogger(__name__)
READ_EVERY_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Autoscalers:
    """What was found, by namespace."""

    cluster: Cluster
    _found: dict[str, dict[str, str]] = field(default_factory=dict)
    _asked_s: dict[str, float] = field(default_factory=dict)  # namespace -> when it was last asked for
    _readers: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # namespace -> its read that is under way

    def find(self, key: Key, now_s: float) -> str | None:
        """Kind and name of an autoscaler that has the service as its target, as far as is known by now.

        Kinds that may not be read count as absent. While the API server does not answer, what was found last counts.
        """
        namespace = key.namespace
        asked_s = self._asked_s.get(namespace)
        if namespace not in self._readers and (asked_s is None or now_s - asked_s >= READ_EVERY_S):
            self._asked_s[namespace] = now_s
            self._readers[namespace] = asyncio.create_task(self._refresh(namespace))
        return self._found.get(namespace, {}).get(key.name)

    async def close(self) -> None:
        """End the reads that are under way."""
        readers = list(self._readers.values())
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    async def _refresh(self, namespace: str) -> None:
        try:
            self._found[namespace] = await self._read(namespace)
        except OperatorError as error:
            logger.warning("namespace %s: its autoscalers cannot be read: %s", namespace, error)
        finally:
            del self._readers[namespace]

    async def _read(self, namespace: str) -> dict[str, str]:
        targets: dict[str, str] = {}
        for resource in (AUTOSCALER, SCALED_OBJECT):
            try:
                found = await self.cluster.find(resource, namespace, {})
            except NotFoundError:
                continue
            except ApiError as error:
                if error.status != 403:
                    raise
                continue
            for raw in found:
                target: dict[str, Any] = raw.get("spec", {}).get("scaleTargetRef") or {}
                group, _, _ = str(target.get("apiVersion")).partition("/")
                if (group, target.get("kind")) == (GROUP, KIND):
                    targets[str(target.get("name"))] = f"{resource.kind} {raw['metadata']['name']}"
        return targets

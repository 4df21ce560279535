"""Whether somebody else's autoscaler writes the replicas of a service that the operator scales.

Read at most once a minute for each namespace. KEDA's kind need not be there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final

from pagefleet_operator.api.v1alpha1 import KIND
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
    _found: dict[str, tuple[float, dict[str, str]]] = field(default_factory=dict)

    async def find(self, key: Key, now_s: float) -> str | None:
        """Kind and name of an autoscaler that has the service as its target.

        Kinds that may not be read count as absent. While the API server does not answer, what was found last counts.
        """
        read_s, targets = self._found.get(key.namespace, (None, {}))
        if read_s is None or now_s - read_s >= READ_EVERY_S:
            try:
                targets = await self._read(key.namespace)
            except OperatorError as error:
                logger.warning("namespace %s: its autoscalers cannot be read: %s", key.namespace, error)
            self._found[key.namespace] = now_s, targets
        return targets.get(key.name)

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
                if target.get("kind") == KIND:
                    targets[str(target.get("name"))] = f"{resource.kind} {raw['metadata']['name']}"
        return targets

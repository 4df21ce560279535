"""The PodDisruptionBudget: how many pods an eviction (a node drain) must leave.

`minAvailable` is an integer: a percentage, or `maxUnavailable`, would make Kubernetes read the owner's `/scale`, which
fails where `spec.replicas` is absent. A single replica gets no budget: one would block every node drain for ever, and
an operator of nodes expects a single-replica service to move. Draining pods are unready, hence `AlwaysAllow`.
"""

from __future__ import annotations

from pagefleet_operator import labels
from pagefleet_operator.manifests.ownership import Owner, child_metadata
from pagefleet_operator.resources import BUDGET, Object


def build_budget(owner: Owner, replicas: int, max_unavailable: int) -> Object | None:
    """The budget, or None where there should be none."""
    if replicas < 2:
        return None
    return {
        "apiVersion": BUDGET.api_version,
        "kind": BUDGET.kind,
        "metadata": child_metadata(owner, owner.key.name),
        "spec": {
            "minAvailable": max(1, replicas - max(1, max_unavailable)),
            "selector": {"matchLabels": labels.pod_selector(owner.key.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }

"""Names, labels and annotations of everything that the operator makes.

Child names follow from the service's name alone, so that a restart or a second operator cannot make a child twice.
Labels are ours only: nothing is copied from the parent, because GitOps tools track objects by copied labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pagefleet_operator.api.v1alpha1 import GROUP

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "pagefleet-operator"
SERVICE: Final = f"{GROUP}/service"
REVISION: Final = f"{GROUP}/revision"

LEAVING: Final = f"{GROUP}/leaving"
"""Annotation of a pod that drains: since when."""
SERVING_GATE: Final = f"{GROUP}/serving"
"""Readiness gate: whether the operator wants traffic to come to a pod."""

CONTROL_KEYS: Final = f"{GROUP}/control-keys"
"""Annotation of a pod: the public keys that sign control tokens."""
RUNTIME_CONFIG: Final = f"{GROUP}/runtime-config"
"""Annotation of a pod: what its engine should start with, as JSON."""
ROTATE_KEYS: Final = f"{GROUP}/rotate-keys"
"""Annotation of the Secret with the signing keys: make a new one now, whatever the value."""

RESET_PRECISION: Final = f"{GROUP}/reset-precision"
"""Annotation of a service: the route that a person wants back in the engine's precision, and anything after it.

Each value counts once: to reset a route again, write another text after its name.
"""

MANAGED_SELECTOR: Final = f"{MANAGED_BY}={MANAGER}"
ENGINE_CONTAINER: Final = "engine"


class Key(NamedTuple):
    """The identity of one LLMService."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def child_labels(service: str) -> dict[str, str]:
    """The labels of every child of a service."""
    return {MANAGED_BY: MANAGER, SERVICE: service}


def pod_selector(service: str) -> dict[str, str]:
    """What Services, the PodDisruptionBudget and `/scale` select a service's pods by."""
    return {SERVICE: service}


def selector_text(labels: Mapping[str, str]) -> str:
    """A label selector in the form of a query parameter."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def headless_name(service: str) -> str:
    """The headless Service, through which single pods are addressed."""
    return f"{service}-pods"


def pod_name(service: str, revision: str, ordinal: int) -> str:
    """A pod's name; the ordinal is the lowest one that no listed pod of this revision has."""
    return f"{service}-{revision}-{ordinal}"


def revision_of(rendered: Mapping[str, Any]) -> str:
    """Six hex digits that change with anything in a rendered pod."""
    text = json.dumps(rendered, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:6]

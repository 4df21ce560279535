"""The kinds of objects that the operator reads and writes, and how the API server addresses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pagefleet_operator.api import v1alpha1

Object = dict[str, Any]
"""A Kubernetes object as JSON; `observe` is the place that parses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str


LLM_SERVICE: Final = Resource(api_version=v1alpha1.API_VERSION, kind=v1alpha1.KIND, plural=v1alpha1.PLURAL)
POD: Final = Resource(api_version="v1", kind="Pod", plural="pods")
SERVICE: Final = Resource(api_version="v1", kind="Service", plural="services")
BUDGET: Final = Resource(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets")
LEASE: Final = Resource(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")
ENDPOINT_SLICE: Final = Resource(api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices")
SECRET: Final = Resource(api_version="v1", kind="Secret", plural="secrets")
AUTOSCALER: Final = Resource(
    api_version="autoscaling/v2", kind="HorizontalPodAutoscaler", plural="horizontalpodautoscalers"
)
SCALED_OBJECT: Final = Resource(api_version="keda.sh/v1alpha1", kind="ScaledObject", plural="scaledobjects")
EVENT: Final = Resource(api_version="events.k8s.io/v1", kind="Event", plural="events")


def controller_uid(raw: Object) -> str | None:
    """The uid of the object's controller, if it has one."""
    for reference in raw["metadata"].get("ownerReferences", ()):
        if reference.get("controller"):
            return str(reference["uid"])
    return None

"""LLMService, version v1alpha1: the single source of the CRD, of the reference page and of what the operator parses.

The parts of the spec live in `engine_spec`, `remedy_spec` and `pod_spec`, the status in `status`. What is not built
yet is refused; `unbuilt.py` lists it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Final

from pydantic import Field

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.base import ApiModel, MapList, Rule
from pagefleet_operator.api.engine_spec import EngineSpec, KvCacheSpec, MaxNumSeqs, ModelSpec
from pagefleet_operator.api.pod_spec import PodSpec
from pagefleet_operator.api.quantities import parse_duration
from pagefleet_operator.api.remedy_spec import AutoscalingSpec, KvPrecisionSpec, Mode, RouteSpec, TuningSpec
from pagefleet_operator.api.scalars import DrainTimeout, ObjectName, ReplicaCount
from pagefleet_operator.api.status import LLMServiceStatus

__all__ = [
    "ApiKeysSpec",
    "AutoscalingSpec",
    "DrainSpec",
    "EngineSpec",
    "KvCacheSpec",
    "KvPrecisionSpec",
    "LLMService",
    "LLMServiceSpec",
    "LLMServiceStatus",
    "MaxNumSeqs",
    "Mode",
    "ModelSpec",
    "PodSpec",
    "RolloutSpec",
    "RouteSpec",
    "TuningSpec",
]

GROUP: Final = "pagefleet.io"
VERSION: Final = "v1alpha1"
KIND: Final = "LLMService"
PLURAL: Final = "llmservices"
SINGULAR: Final = "llmservice"
SHORT_NAME: Final = "llms"
CATEGORIES: Final = ("all", "pagefleet")
API_VERSION: Final = f"{GROUP}/{VERSION}"

MAX_NAME: Final = 50
"""Longest name of an LLMService: pods and Services add to it, and a Service's name has at most 63 characters."""

FINENESS: Final = (Precision.BF16, Precision.INT8, Precision.FP8_E4M3, Precision.INT4, Precision.FP8_E5M2)
"""Precisions by how little an answer changes under them, least first."""


class ApiKeysSpec(ApiModel):
    """Keys that clients must send."""

    secret_name: ObjectName
    """A Secret of the same namespace; each of its values is a key. The node mounts it; the operator reads no Secret."""


class DrainSpec(ApiModel):
    """How a pod leaves."""

    timeout: DrainTimeout = "5m"
    """How long running requests may take before the pod is removed all the same."""

    @property
    def timeout_duration(self) -> timedelta:
        """The timeout as a time span."""
        return parse_duration(self.timeout)


class RolloutSpec(ApiModel):
    """How pods of an older revision are replaced."""

    max_surge: ReplicaCount = 0
    """Pods beyond `replicas` while replacing."""
    max_unavailable: ReplicaCount = 1
    """Pods that may be missing while replacing."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.maxSurge > 0 || self.maxUnavailable > 0",
            message="maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
            holds=lambda rollout: rollout.max_surge > 0 or rollout.max_unavailable > 0,
        ),
    )


def _not_coarser(spec: LLMServiceSpec) -> bool:
    own = FINENESS.index(spec.engine.kv_cache.precision)
    return all(FINENESS.index(route.kv_precision.fallback) <= own for route in spec.routes)


def _length_floor_fits(spec: LLMServiceSpec) -> bool:
    floor, longest = spec.tuning.max_model_len, spec.engine.max_model_len
    return floor is None or longest is None or floor.min <= longest


def _aliases_differ(spec: LLMServiceSpec) -> bool:
    names = [spec.model.name, *(route.model for route in spec.routes)]
    return len(set(names)) == len(names)


# A map lookup has a fixed cost estimate; `indexOf` on a list exceeds the API server's budget.
_COARSENESS = "{" + ", ".join(f"'{precision}': {rank}" for rank, precision in enumerate(FINENESS)) + "}"


class LLMServiceSpec(ApiModel):
    """What is wanted."""

    model: ModelSpec
    """The model, and the name that clients ask for."""
    engine: EngineSpec
    """What the engines are started with."""
    replicas: ReplicaCount | None = None
    """How many engine pods. Absent, and no `autoscaling` given: 1. Leave it out of version control when another
    autoscaler writes it through `/scale`."""
    autoscaling: AutoscalingSpec | None = None
    """Lets the operator choose the number of pods. Absent: it does not."""
    tuning: TuningSpec = TuningSpec()
    """Lets the operator move the engines' running cap."""
    routes: Annotated[tuple[RouteSpec, ...], Field(max_length=16), MapList(key="name")] = ()
    """Aliases of the model, each with its own precision policy and counters."""
    api_keys: ApiKeysSpec | None = None
    """Keys that clients must send. Absent: none."""
    drain: DrainSpec = DrainSpec()
    """How a pod leaves."""
    rollout: RolloutSpec = RolloutSpec()
    """How pods of an older revision are replaced."""
    pod: PodSpec = PodSpec()
    """The part of the engine pods that people may set."""
    paused: bool = False
    """The operator reports, but changes nothing; the engines serve on."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.replicas) && has(self.autoscaling))",
            message="give either replicas or autoscaling: with autoscaling the operator chooses the number of pods",
            field="replicas",
            holds=lambda spec: spec.replicas is None or spec.autoscaling is None,
        ),
        Rule(
            cel="!has(self.tuning.maxModelLen) || !has(self.engine.maxModelLen) || "
            "self.tuning.maxModelLen.min <= self.engine.maxModelLen",
            message="tuning.maxModelLen.min must not be above engine.maxModelLen",
            field="tuning.maxModelLen.min",
            holds=_length_floor_fits,
        ),
        Rule(
            cel="!has(self.routes) || self.routes.all(r, "
            f"{_COARSENESS}[r.kvPrecision.fallback] <= {_COARSENESS}[self.engine.kvCache.precision])",
            message="kvPrecision.fallback must not be coarser than engine.kvCache.precision; "
            f"from fine to coarse: {', '.join(FINENESS)}",
            field="routes",
            holds=_not_coarser,
        ),
        Rule(
            cel="!has(self.routes) || self.routes.all(r, r.model != self.model.name && "
            "self.routes.exists_one(other, other.model == r.model))",
            message="every route needs a model alias of its own, different from model.name",
            field="routes",
            holds=_aliases_differ,
        ),
    )

    @property
    def desired_replicas(self) -> int:
        """How many pods the spec asks for by itself; with autoscaling, how many at least."""
        if self.autoscaling is not None:
            return self.autoscaling.min_replicas
        return 1 if self.replicas is None else self.replicas


class LLMService(ApiModel):
    """A fleet of engine pods that serve one model."""

    spec: LLMServiceSpec
    """What is wanted."""
    status: LLMServiceStatus | None = None
    """What the operator saw and did."""

    NAME_RULE: ClassVar[dict[str, str]] = {
        "rule": f"size(self.metadata.name) <= {MAX_NAME} && "
        "self.metadata.name.matches(r'^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": f"must be at most {MAX_NAME} lower-case letters, digits or '-', and begin with a letter: "
        "a Service is named after it",
        "fieldPath": ".metadata.name",
    }
    """A rule about the object itself, whose metadata is no part of this model."""

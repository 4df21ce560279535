"""What one engine should be set to, and the change that gets it there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_engine.contract.control import RouteConfig, RuntimeChange, RuntimeConfig
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.arguments import model_argument
from pagefleet_operator.manifests.runtime import RouteOverride, route_configs
from pagefleet_operator.pods import PodObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What should be in force on one engine; None leaves a value alone."""

    cap: int | None = None
    max_model_len: int | None = None
    routes: tuple[RouteConfig, ...] | None = None


def routes_for(
    pod: PodObservation, spec: LLMServiceSpec, overrides: Mapping[str, RouteOverride]
) -> tuple[RouteConfig, ...] | None:
    """The routes of one pod, which may be of an older revision: in the precision that its engine was started in.

    None for a pod of another model, or of an unknown command line: what was decided is not about it.
    """
    if pod.kv_precision is None or pod.model != model_argument(spec.model.uri):
        return None
    return route_configs(spec, overrides, pod.kv_precision)


def is_compared(pod: PodObservation, spec: LLMServiceSpec) -> bool:
    """Whether its answers count for the routes of this spec: they are of its model, in its precision."""
    return pod.kv_precision is spec.engine.kv_cache.precision and pod.model == model_argument(spec.model.uri)


def change_for(config: RuntimeConfig, target: Target) -> RuntimeChange | None:
    """What to ask of an engine that has this configuration; None when it is as it should be."""
    cap = target.cap if target.cap != config.cap else None
    length = target.max_model_len if target.max_model_len != config.max_model_len else None
    wanted = _known_routes(config, target)
    routes = wanted if wanted != config.routes else None
    if cap is None and length is None and routes is None:
        return None
    return RuntimeChange(expected_generation=config.generation, cap=cap, max_model_len=length, routes=routes)


def _known_routes(config: RuntimeConfig, target: Target) -> tuple[RouteConfig, ...]:
    """The engine's routes, as they should be. A pod of an older revision may have others than the spec.

    What it has besides stays as it is, and what it has not cannot be added: it serves the names that it began with.
    """
    wanted = {(route.name, route.model): route for route in target.routes or ()}
    return tuple(wanted.get((route.name, route.model), route) for route in config.routes)

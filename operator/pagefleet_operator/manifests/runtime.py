"""What engines start with and are set to while they run: routes, cap and length, from a spec and what was decided.

These values travel in a pod annotation and through the control API; a change of them replaces no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from pagefleet_engine.contract.control import DEFAULT_ROUTE, RouteConfig, RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.remedy_spec import RouteSpec
from pagefleet_operator.api.v1alpha1 import FINENESS, LLMServiceSpec

STRUCTURED: Final[dict[str, Literal["off", "validate"]]] = {"Off": "off", "Validate": "validate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOverride:
    """What the precision remedy has decided for one route; None leaves what the engine was started with."""

    precision: Precision | None = None
    control_share: float | None = None
    may_demote: bool = True
    """False in fallback: what is kept in a finer precision on purpose is not made coarse again."""


NO_OVERRIDES: Final[Mapping[str, RouteOverride]] = MappingProxyType({})


def runtime_start(
    spec: LLMServiceSpec,
    *,
    cap: int | None = None,
    max_model_len: int | None = None,
    overrides: Mapping[str, RouteOverride] = NO_OVERRIDES,
) -> RuntimeStart:
    """What a new pod should start with. `cap` and `max_model_len` are what was decided, cut to what the spec allows."""
    bounds, longest = spec.engine.max_num_seqs, spec.engine.max_model_len
    if cap is not None:
        cap = min(max(cap, bounds.min), bounds.max)
    if max_model_len is not None and longest is not None:
        max_model_len = min(max_model_len, longest)
    return RuntimeStart(cap=cap, max_model_len=max_model_len, routes=route_configs(spec, overrides))


def runtime_annotation(start: RuntimeStart) -> str:
    """The value of `labels.RUNTIME_CONFIG`; equal values give equal texts."""
    return start.model_dump_json(exclude_none=True)


def route_configs(
    spec: LLMServiceSpec,
    overrides: Mapping[str, RouteOverride] = NO_OVERRIDES,
    own: Precision | None = None,
) -> tuple[RouteConfig, ...]:
    """Every route, `default` first, with what was decided for it by name.

    `own` is the precision that the engine was started in, where it is not the spec's: a pod of an older revision.
    """
    own = spec.engine.kv_cache.precision if own is None else own
    default = RouteConfig(name=DEFAULT_ROUTE, model=spec.model.name, precision=own)
    return (default, *(_route(route, own, overrides.get(route.name, RouteOverride())) for route in spec.routes))


def _route(route: RouteSpec, own: Precision, override: RouteOverride) -> RouteConfig:
    wanted = route.kv_precision
    share = override.control_share
    return RouteConfig(
        name=route.name,
        model=route.model,
        structured=STRUCTURED[route.structured],
        precision=own if override.precision is None else _finer(own, override.precision),
        control_precision=_finer(own, wanted.fallback),
        control_share=route.control_share if share is None else share,
        max_context=wanted.fp8_max_context,
        allow_demotion=wanted.allow_demotion and override.may_demote,
    )


def _finer(one: Precision, other: Precision) -> Precision:
    """No route is kept coarser than its engine was started for; only an engine of an older revision could be."""
    return min(one, other, key=FINENESS.index)

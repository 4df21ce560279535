"""What one engine should be set to, and the change that gets it there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_engine.contract.control import RouteConfig, RuntimeChange, RuntimeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What should be in force on one engine; None leaves a value alone."""

    cap: int | None = None
    max_model_len: int | None = None
    routes: tuple[RouteConfig, ...] | None = None


def change_for(config: RuntimeConfig, target: Target) -> RuntimeChange | None:
    """What to ask of an engine that has this configuration; None when it is as it should be.

    A pod of an older revision may serve other aliases: its routes are left alone, since a change that loses one would
    be refused as a whole.
    """
    cap = target.cap if target.cap != config.cap else None
    length = target.max_model_len if target.max_model_len != config.max_model_len else None
    routes = target.routes if target.routes != config.routes and _same_aliases(config, target) else None
    if cap is None and length is None and routes is None:
        return None
    return RuntimeChange(expected_generation=config.generation, cap=cap, max_model_len=length, routes=routes)


def _same_aliases(config: RuntimeConfig, target: Target) -> bool:
    wanted = {(route.name, route.model) for route in target.routes or ()}
    return wanted == {(route.name, route.model) for route in config.routes}

"""The route table: which route a request's model name means, and in which precision the request keeps its KV.

Pure. A change of the table is for requests that arrive from then on; those that run end as they began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from pagefleet_engine.api import ModelInfo
from pagefleet_engine.contract.control import DEFAULT_ROUTE, RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.control_share import ControlShare
from pagefleet_engine.server.errors import invalid, shorten

Routes = tuple[RouteConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePick:
    """What a route decided for one prompt; all choices of the prompt share it."""

    route: str
    precision: Precision
    is_control: bool = False
    """It is one of the control share, whose answers the others are compared with."""
    allow_demotion: bool = False
    validates: bool = False
    """Its finished answers are checked against their schema, and counted."""
    by_length: bool = False
    """Its length and not chance has decided the precision: its answers are compared with no others."""
    is_dealt: bool = False
    """It has taken a turn of the control share, as a control or not."""


@dataclass(slots=True)
class _Route:
    config: RouteConfig
    control: ControlShare


class RouteTable:
    """The routes in force, by the names that clients send. Belongs to the event loop."""

    def __init__(
        self,
        routes: Routes,
        *,
        seed: str,
        served_names: Sequence[str] = (),
        longest: Mapping[Precision, int] | None = None,
    ) -> None:
        """`served_names` are further names of the `default` route; `longest` is `ModelInfo.longest_kv`.

        `seed` and the name of a route decide which of its requests are controls.
        """
        self._seed = seed
        self._served_names = tuple(served_names)
        self._longest = longest
        self._routes: dict[str, _Route] = {}
        self.replace(routes)

    @property
    def configs(self) -> Routes:
        """Every route, `default` first."""
        return tuple(route.config for route in self._routes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a client may use, the model's own first."""
        return tuple(dict.fromkeys((*self._served_names, *(config.model for config in self.configs))))

    def replace(self, routes: Routes) -> None:
        """Put other routes in force. A control share that stays the same goes on where it was."""
        self._routes = {config.name: _Route(config, self._control(config)) for config in routes}
        self._by_alias = {route.config.model: route for route in reversed(self._routes.values())}

    def pick(self, model: str, num_tokens: int) -> RoutePick:
        """The route of a served name, and what it decides for a prompt that may reach `num_tokens` with its answer."""
        route = self._by_alias.get(model) or self._routes[DEFAULT_ROUTE]
        config = route.config
        is_long = config.max_context is not None and num_tokens > config.max_context
        by_length = config.precision != config.control_precision and (is_long or not self._fits(config, num_tokens))
        is_dealt = not (is_long or by_length) and config.control_share > 0
        is_control = is_dealt and route.control.next()
        return RoutePick(
            route=config.name,
            precision=config.control_precision if is_long or is_control else config.precision,
            is_control=is_control,
            allow_demotion=config.allow_demotion and not (is_long or is_control),
            validates=config.structured == "validate",
            by_length=by_length,
            is_dealt=is_dealt,
        )

    def give_back(self, pick: RoutePick) -> None:
        """The engine did not take the request: its turn of the control share is for another one."""
        route = self._routes.get(pick.route)
        if route is not None and pick.is_dealt:
            route.control.give_back(pick.is_control)

    def _control(self, config: RouteConfig) -> ControlShare:
        known = self._routes.get(config.name)
        if known is not None and known.config.control_share == config.control_share:
            return known.control
        # Another share begins another sequence: the seed of the first one would deal the same turns again.
        rng = Random(f"{self._seed}/{config.name}") if known is None else known.control.rng
        return ControlShare(config.control_share, rng)

    def _fits(self, config: RouteConfig, num_tokens: int) -> bool:
        """No request fails for a comparison: who would not fit into the pool as a control is none."""
        return self._longest is None or num_tokens <= self._longest.get(config.control_precision, 0)


def default_route(model: str, precision: Precision) -> RouteConfig:
    """The route of requests for the model itself where no configuration names one."""
    return RouteConfig(name=DEFAULT_ROUTE, model=model, precision=precision)


def check_routes(routes: Routes, info: ModelInfo) -> None:
    """Raises `ApiError` for routes that this engine cannot serve."""
    check_names(routes)
    check_precisions(routes, info)


def check_names(routes: Routes) -> None:
    """Raises `ApiError` unless `default` comes first and no name or alias is there twice."""
    if routes[0].name != DEFAULT_ROUTE:
        raise invalid(f"routes.0.name: must be {DEFAULT_ROUTE!r}, the route of the model itself", param="routes.0.name")
    for position, route in enumerate(routes):
        for key in ("name", "model"):
            value = getattr(route, key)
            if any(getattr(other, key) == value for other in routes[:position]):
                where = f"routes.{position}.{key}"
                raise invalid(f"{where}: {shorten(value)} is there twice", param=where)


def check_precisions(routes: Routes, info: ModelInfo) -> None:
    """Raises `ApiError` for a precision that this engine cannot keep KV in."""
    for position, route in enumerate(routes):
        for key in ("precision", "control_precision"):
            precision, where = getattr(route, key), f"routes.{position}.{key}"
            if info.longest_kv is not None and precision not in info.longest_kv:
                kept = ", ".join(info.longest_kv)
                raise invalid(f"{where}: {precision}: this engine can keep KV in {kept} only", param=where)


def check_same_routes(old: Routes, new: Routes) -> None:
    """Raises `ApiError` when a change would take an alias from its clients, add one, or move one."""
    before, after = ({route.name: route.model for route in routes} for routes in (old, new))
    for name in before.keys() - after.keys():
        raise invalid(f"routes: {shorten(name)} is missing: a change names every route", param="routes")
    for position, route in enumerate(new):
        if route.name not in before:
            where = f"routes.{position}.name"
            raise invalid(f"{where}: {shorten(route.name)} is no route of this engine: start a new one", param=where)
        if before[route.name] != route.model:
            where = f"routes.{position}.model"
            message = f"{where}: must stay {shorten(before[route.name])}: clients of the route send it"
            raise invalid(message, param=where)

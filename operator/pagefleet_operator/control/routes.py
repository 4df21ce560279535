"""The precision remedy over all routes of a service: counts from the windows in, overrides and statuses out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pagefleet_engine.contract.control import DEFAULT_ROUTE
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.remedy_spec import Mode, RouteSpec
from pagefleet_operator.api.status import Decision, LLMServiceStatus, RouteStatus
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.control.numbers import coarse
from pagefleet_operator.control.room import HIGHEST_USE, use_after_move
from pagefleet_operator.manifests.runtime import RouteOverride
from pagefleet_operator.remedies.fleet import RoomNeed
from pagefleet_operator.remedies.precision import memory as route_memory
from pagefleet_operator.remedies.precision.counts import Increments
from pagefleet_operator.remedies.precision.decide import MOVED, decide
from pagefleet_operator.remedies.precision.decisions import record_reset, record_unknown_route
from pagefleet_operator.remedies.precision.families import find_family
from pagefleet_operator.remedies.precision.look import Enough, Fact, Look, NotEnough, Room, Wanted
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment
from pagefleet_operator.remedies.window import PodWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesOutlook:
    """What follows for the routes from one look."""

    memories: Mapping[str, Memory]
    overrides: Mapping[str, RouteOverride]
    statuses: tuple[RouteStatus, ...]
    facts: Mapping[str, Fact]
    decisions: tuple[Decision, ...]
    next: tuple[str, ...]
    room: RoomNeed | None = None  # of the route that needs most


def restore_routes(spec: LLMServiceSpec, status: LLMServiceStatus, now: Moment) -> dict[str, Memory]:
    """The memories that a status holds."""
    by_name = {route.name: route for route in status.routes}
    return {route.name: route_memory.restore(by_name.get(route.name), now) for route in spec.routes}


def look_at_routes(
    spec: LLMServiceSpec,
    memories: Mapping[str, Memory],
    windows: Iterable[PodWindow],
    usage: Iterable[float],
    begun: Mapping[tuple[str, str], int],
    in_flight: int,
    now: Moment,
) -> RoutesOutlook:
    """One look at every route. `begun`: prompts of the last minute, by route and precision."""
    windows, usage = tuple(windows), tuple(usage)
    own = spec.engine.kv_cache.precision
    family = find_family(spec.model.name, spec.model.uri)
    answers, needs = {}, []
    for route in spec.routes:
        look = Look(
            route=route.name,
            spec=route.kv_precision,
            policy=route.policy,
            control_share=route.control_share,
            engine=own,
            counts=count(windows, route.name),
            room=_room(usage, begun, route, own),
            now=now,
            in_flight=in_flight,
            family=family,
            paused=spec.paused,
        )
        answers[route.name] = answer = decide(memories.get(route.name, Memory()), look)
        if answer.memory.cause is Cause.INSUFFICIENT_CAPACITY and isinstance(look.room, NotEnough):
            shares = {"needed_share": look.room.needed_share, "allowed_share": look.room.allowed_share}
            needs.append(RoomNeed(route=route.name, **shares))
    return RoutesOutlook(
        memories={name: answer.memory for name, answer in answers.items()},
        overrides={
            route.name: _override(route, answers[route.name].memory, answers[route.name].wanted)
            for route in spec.routes
        },
        statuses=(
            RouteStatus(name=DEFAULT_ROUTE, model=spec.model.name, kv_precision=own),
            *(
                _status(route, answers[route.name].memory, answers[route.name].wanted.precision)
                for route in spec.routes
            ),
        ),
        facts={name: answer.fact for name, answer in answers.items()},
        decisions=tuple(decision for answer in answers.values() for decision in answer.decisions),
        next=tuple(answer.what_next for answer in answers.values() if answer.what_next),
        room=max(needs, key=lambda need: need.needed_share, default=None),
    )


def count(windows: Iterable[PodWindow], route: str) -> Increments:
    """Unconstrained answers of a route since the last look, over all pods; pods that are not measured add none."""
    total: Counter[tuple[str, str]] = Counter()
    for window in windows:
        gained = window.structured()
        if isinstance(gained, Mapping):
            for verdicts, number in gained.items():
                if verdicts.route == route and not verdicts.constrained:
                    total[verdicts.precision, verdicts.outcome] += int(number)
    return total


def reset_routes(
    spec: LLMServiceSpec, memories: Mapping[str, Memory], wanted: str | None, done: str | None, now: Moment
) -> tuple[Mapping[str, Memory], tuple[Decision, ...]]:
    """The memories after a person's annotation, which counts once for each of its values, and what to tell of it."""
    if wanted is None or wanted == done:
        return memories, ()
    route, names = next(iter(wanted.split(maxsplit=1)), ""), [route.name for route in spec.routes]
    if route not in names:
        return memories, (record_unknown_route(route, names, now),)
    before = memories.get(route, Memory())
    return {**memories, route: route_memory.reset(before, now)}, (record_reset(before, route, now),)


def _override(route: RouteSpec, memory: Memory, wanted: Wanted) -> RouteOverride:
    """A route that has moved stays so on every engine, also where a new spec makes the fallback the engine's own."""
    has_moved = memory.state in MOVED and route.policy is Mode.AUTO
    return RouteOverride(
        precision=route.kv_precision.fallback if has_moved else None,
        control_share=wanted.control_share,
        may_demote=wanted.allow_demotion,
    )


def _status(route: RouteSpec, memory: Memory, precision: Precision) -> RouteStatus:
    found = route_memory.to_status(memory, RouteStatus(name=route.name, model=route.model, kv_precision=precision))
    counts = {"samples": coarse(found.samples or 0), "schema_failures": coarse(found.schema_failures or 0)}
    return found.model_copy(update=counts)


def _room(usage: tuple[float, ...], begun: Mapping[tuple[str, str], int], route: RouteSpec, own: Precision) -> Room:
    needed = use_after_move(usage, begun, route.name, own, route.kv_precision.fallback)
    return Enough() if needed <= HIGHEST_USE else NotEnough(needed_share=needed, allowed_share=HIGHEST_USE)

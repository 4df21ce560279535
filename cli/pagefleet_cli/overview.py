"""`pagefleet status`: one line per LLMService."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pagefleet_cli.explain import ContextName, FromFile, Name, Namespace
from pagefleet_cli.output import make_console, table
from pagefleet_cli.sentences import clock, percent
from pagefleet_cli.services import Service, Source, find_services
from pagefleet_operator.api.conditions import ConditionStatus, ConditionType, find_condition
from pagefleet_operator.api.status import RouteState

COLUMNS = ("NAMESPACE", "NAME", "READY", "REPLICAS", "CAP", "KV", "RUN/WAIT/SWAP", "ROUTES", "LAST DECISION")
UNKNOWN = "-"


def status(
    name: Name = None,
    namespace: Namespace = None,
    context: ContextName = None,
    file: FromFile = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of every namespace.")] = False,
) -> None:
    """Show every LLMService in one line: readiness, replicas, cap, KV use, load, routes, last decision."""
    source = Source(namespace=namespace, context=context, file=file, all_namespaces=all_namespaces)
    print_overview(make_console(), find_services(source, name))


def print_overview(console: Console, services: list[Service]) -> None:
    """A table; a sentence when there is nothing to show."""
    if not services:
        console.print("There is no LLMService.")
        return
    table(console, COLUMNS, [overview_row(service) for service in services], left=len(COLUMNS))


def overview_row(service: Service) -> tuple[str, ...]:
    """One service, cell by cell; what nobody knows is a dash."""
    found = service.status
    tuning, last = found.tuning, found.decisions[:1]
    return (
        service.namespace,
        service.name,
        _ready(service),
        found.replicas_summary or UNKNOWN,
        UNKNOWN if tuning is None or tuning.max_num_seqs is None else f"{tuning.max_num_seqs}/{tuning.capacity or '?'}",
        _kv(service),
        _load(service),
        _routes(service),
        f"{clock(last[0].time)} {last[0].reason}" if last else UNKNOWN,
    )


def _ready(service: Service) -> str:
    ready = find_condition(service.status.conditions, ConditionType.READY)
    if ready is None:
        return UNKNOWN
    return str(ready.status) if ready.status is ConditionStatus.TRUE else f"{ready.status}: {ready.reason}"


def _kv(service: Service) -> str:
    cache = service.status.kv_cache
    if cache is None:
        return UNKNOWN
    used = UNKNOWN if cache.usage is None else percent(cache.usage)
    return used if cache.precision is None else f"{cache.precision} {used}"


def _load(service: Service) -> str:
    load = service.status.load
    numbers = () if load is None else (load.running, load.waiting, load.swapped)
    return "/".join(UNKNOWN if number is None else str(number) for number in numbers) or UNKNOWN


def _routes(service: Service) -> str:
    """Those whose precision is not as the spec says."""
    moved = [f"{route.name} {route.state}" for route in service.status.routes if route.state is not RouteState.NORMAL]
    return ", ".join(moved) or UNKNOWN

"""`pagefleet explain`: the last decisions with their numbers, and what would have to change for the next one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagefleet_cli.output import heading, lines, make_console
from pagefleet_cli.sentences import (
    clock,
    condition_sentence,
    decision_sentence,
    load_sentence,
    measurements,
    route_sentences,
    troubles,
)
from pagefleet_cli.services import Service, Source, find_service
from pagefleet_operator.api.status import Decision

Name = Annotated[str | None, typer.Argument(help="The LLMService. May be left out where there is only one.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: that of the kubeconfig's context.")]
ContextName = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
FromFile = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read the object from a JSON or YAML file instead; - is stdin.")
]


def explain(
    name: Name = None,
    namespace: Namespace = None,
    context: ContextName = None,
    file: FromFile = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="The last decision on top.")] = False,
) -> None:
    """Say what the operator did for an LLMService, why, and what the next remedy waits for."""
    service = find_service(Source(namespace=namespace, context=context, file=file), name)
    print_explanation(make_console(), service, datetime.now(UTC), newest_first=newest_first)


def print_explanation(console: Console, service: Service, now: datetime, *, newest_first: bool = False) -> None:
    """All sections; one that has nothing to say is left out, except the decisions."""
    status = service.status
    heading(console, f"{service.namespace}/{service.name}: {load_sentence(status)}")
    if status.observed_generation is not None and status.observed_generation < service.generation:
        seen, wanted = status.observed_generation, service.generation
        lines(console, [f"The operator has seen generation {seen} of the spec, and {wanted} is there."])
    _section(console, "Not as it should be", [condition_sentence(c, now) for c in troubles(status.conditions)])
    _section(console, "Routes", route_sentences(status, now))
    ordered = status.decisions if newest_first else tuple(reversed(status.decisions))
    order = "newest" if newest_first else "oldest"
    _section(console, f"Decisions, {order} first", _decisions(ordered) or ["None yet."])
    _section(console, "What the next remedy waits for", list(status.next))


def _section(console: Console, title: str, sentences: list[str]) -> None:
    if sentences:
        console.print()
        heading(console, title)
        lines(console, sentences)


def _decisions(decisions: tuple[Decision, ...]) -> list[str]:
    found = []
    for decision in decisions:
        found.append(f"{clock(decision.time)}  {decision_sentence(decision)}")
        if numbers := measurements(decision):
            found.append(f"    measured: {numbers}")
    return found

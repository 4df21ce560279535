"""What `explain` and `status` print, word for word."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from pagefleet_cli.explain import print_explanation
from pagefleet_cli.main import main
from pagefleet_cli.overview import print_overview
from pagefleet_cli.services import Source, find_service, find_services
from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY, Scene

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def printed(show):
    out = io.StringIO()
    show(Console(file=out, width=120, highlight=False, no_color=True))
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("name", ["chat", "new"])
def test_an_explanation_is_the_golden_one(name):
    service = find_service(Source(file=GOLDEN / f"{name}.yaml"), None)
    assert printed(lambda console: print_explanation(console, service, NOW)) == (GOLDEN / f"{name}.txt").read_text()


def test_newest_first_turns_the_decisions_round():
    service = find_service(Source(file=GOLDEN / "chat.yaml"), "chat")
    text = printed(lambda console: print_explanation(console, service, NOW, newest_first=True))
    reasons = [reason for reason in text.split() if reason.startswith(("(Ins", "(Que", "(Req"))]
    assert reasons == ["(InsufficientCapacity):", "(QueueAboveTarget):", "(RequestsSwapped):"]
    assert "Decisions, newest first" in text


def test_the_overview_is_the_golden_one():
    services = [service for name in ("chat", "new") for service in find_services(Source(file=GOLDEN / f"{name}.yaml"))]
    assert printed(lambda console: print_overview(console, services)) == (GOLDEN / "status.txt").read_text()


def test_a_terminal_gets_a_table_with_the_same_cells():
    services = find_services(Source(file=GOLDEN / "chat.yaml"))
    out = io.StringIO()
    print_overview(Console(file=out, width=200, force_terminal=True), services)
    assert "tools Fallback" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_no_service_is_said_in_a_sentence():
    assert printed(lambda console: print_overview(console, [])) == "There is no LLMService.\n"


def test_the_command_prints_plain_text_into_a_pipe(capsys):
    assert main(["explain", "chat", "--file", str(GOLDEN / "chat.yaml")]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert "would have scaled from 2 to 3 (QueueAboveTarget): 14 requests waited on average" in found.out
    assert "\x1b" not in found.out


async def shown_of(scene, tmp_path):
    """What `explain` prints of the object as the operator left it."""
    path = tmp_path / "service.json"
    path.write_text(json.dumps(await scene.cluster.get(LLM_SERVICE, *KEY)))
    service = find_service(Source(file=path), KEY.name)
    return printed(lambda console: print_explanation(console, service, scene.cluster.now))


async def test_a_service_that_the_operator_has_settled_has_no_troubles_but_missing_figures(tmp_path):
    """Nobody looks at engines here, so that figures and remedies are unknown."""
    scene = Scene()
    await scene.make_settled()
    text = await shown_of(scene, tmp_path)
    assert text.startswith("models/smollm2: 1/1 replicas serve, cap ")
    assert "Ready is" not in text
    assert "Progressing" not in text
    assert "Degraded" not in text


async def test_a_new_service_is_explained_as_being_made(tmp_path):
    scene = Scene()
    await scene.make()
    await scene.reconcile()
    text = await shown_of(scene, tmp_path)
    assert "Ready is False (CreatingPods) for 0 s: 0 of 1 pods are made." in text
    assert "Progressing is True (CreatingPods)" in text

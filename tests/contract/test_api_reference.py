"""The API's reference page names every field, limit, code and setting that there is, with its value."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from pagefleet_engine.contract.control import DrainRequest, EngineState, RouteConfig, RuntimeConfig, RuntimeStart
from pagefleet_engine.contract.metrics import Metric
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.app import create_app, new_app
from pagefleet_engine.server.beam_fields import _NOT_WITH_BEAMS
from pagefleet_engine.server.inputs import ROLES
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schemas import (
    NOT_SERVED,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    StreamOptions,
    TokenizeBody,
)
from pagefleet_engine.server.service import Service

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "api.md").read_text()
WORDS = set(re.findall(r"`([^`]+)`", PAGE))


def test_every_field_of_a_request_is_there():
    bodies = (ChatBody, CompletionBody, StreamOptions, TokenizeBody, DetokenizeBody)
    fields = {*NOT_SERVED, *(name for body in bodies for name in body.model_fields)}
    assert fields - WORDS == set()


def test_every_field_of_the_control_api_is_there():
    models = (RouteConfig, RuntimeConfig, RuntimeStart)
    assert {name for model in models for name in model.model_fields} - WORDS == set()
    assert [
        name for model in (DrainRequest, EngineState) for name in model.model_fields if f'"{name}"' not in PAGE
    ] == []
    assert {*Precision, *ROLES} - WORDS == set()


def test_every_limit_is_there_with_its_value():
    section = PAGE.split("### Limits")[1].split("##")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    shown = {}
    for names, values, *more in rows:
        shown |= dict(zip(re.findall(r"`(\w+)`", names), values.split(";"), strict=True))
        shown |= dict(zip(re.findall(r"`(\w+)`", more[0]), more[1].split(";"), strict=True)) if more[0].strip() else {}
    assert {name: float(value.replace(",", "")) for name, value in shown.items()} == asdict(Limits())


def test_what_no_beam_search_takes_is_named():
    section = PAGE.split("### Beam search")[1].split("###")[0]
    penalties = {name for name in _NOT_WITH_BEAMS if name.endswith("_penalty")}
    assert {name for name in _NOT_WITH_BEAMS if f"`{name}`" not in section} == {*penalties, "top_logprobs"}


def test_every_path_is_there():
    guard = create_app(Service(limits=Limits()))
    paths = {route.path.replace("{name:path}", "{name}") for route in guard._app.routes}
    paths -= {route.path for route in new_app("x").routes if "{" in route.path}
    shown = {path for line in PAGE.splitlines() for path in re.findall(r"(?:GET|POST|PATCH|DELETE) (/\S+?)`", line)}
    assert paths <= shown
    assert shown - paths == {"/v1/runtime_config", "/v1/state", "/v1/drain"}


def test_metrics_that_are_named_exist():
    names = {word.split("{")[0] for word in WORDS if word.startswith(("pagefleet:", "vllm:"))}
    assert names <= set(Metric)

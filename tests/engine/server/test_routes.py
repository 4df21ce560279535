"""Routes: which one a name means, in which precision its requests run, what of it can change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import httpx
import pytest

from pagefleet_engine.api import ModelInfo, RequestOptions
from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.routes import RoutePick, RouteTable, check_routes, check_same_routes
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, running_server, say

FP8, BF16, INT4 = Precision.FP8_E4M3, Precision.BF16, Precision.INT4
DEFAULT = RouteConfig(name="default", model="fake", precision=FP8)
TOOLS = RouteConfig(
    name="tools",
    model="fake-tools",
    precision=FP8,
    structured="validate",
    control_share=0.25,
    max_context=100,
    allow_demotion=True,
)
INFO = ModelInfo(id="fake", max_model_len=512, vocab_size=260, eos_token_ids=(257,))


def changed(route: RouteConfig, **fields: object) -> RouteConfig:
    return route.model_copy(update=fields)


def test_what_a_route_picks():
    table = RouteTable((DEFAULT, TOOLS), seed="0", served_names=("fake", "other"))
    tools = RoutePick(route="tools", precision=FP8, allow_demotion=True, validates=True, is_dealt=True)
    control = replace(tools, precision=BF16, is_control=True, allow_demotion=False)
    long = replace(tools, precision=BF16, allow_demotion=False, by_length=True, is_dealt=False)
    picks = Counter(table.pick("fake-tools", num_tokens) for num_tokens in (100, 101) * 100)
    assert picks == {tools: 75, control: 25, long: 100}
    assert [table.pick(name, 9).route for name in ("fake", "other")] == ["default", "default"]
    assert table.names == ("fake", "other", "fake-tools")


def test_a_control_that_would_not_fit_into_the_pool_is_none():
    table = RouteTable((DEFAULT, changed(TOOLS, control_share=1.0)), seed="0", longest={FP8: 80, BF16: 40})
    picks = [table.pick("fake-tools", num_tokens) for num_tokens in (40, 41)]
    assert [(pick.precision, pick.by_length) for pick in picks] == [(BF16, False), (FP8, True)]


def test_where_there_is_one_precision_no_length_decides():
    table = RouteTable((DEFAULT, changed(TOOLS, precision=BF16)), seed="0", longest={BF16: 40})
    assert not any(table.pick("fake-tools", num_tokens).by_length for num_tokens in (9, 90, 900))


def test_a_share_goes_on_over_a_change_that_leaves_it_alone():
    table = RouteTable((DEFAULT, TOOLS), seed="0")
    picks = 0
    for _ in range(20):
        table.replace((DEFAULT, changed(TOOLS, precision=INT4)))
        picks += table.pick("fake-tools", 9).is_control
    assert picks == 5
    table.replace((DEFAULT, changed(TOOLS, control_share=1.0)))
    assert table.pick("fake-tools", 9).is_control


def test_a_turn_that_is_given_back_is_for_another_request():
    table = RouteTable((DEFAULT, TOOLS), seed="0")
    refused = [table.pick("fake-tools", 9) for _ in range(7)]
    for pick in (*refused, table.pick("fake", 9), table.pick("fake-tools", 101)):
        table.give_back(pick)
    assert sum(table.pick("fake-tools", 9).is_control for _ in range(20)) == 5


def test_seeds_and_routes_have_turns_of_their_own():
    def turns(seed: str, name: str) -> list[bool]:
        table = RouteTable((DEFAULT, changed(TOOLS, name=name)), seed=seed)
        return [table.pick("fake-tools", 9).is_control for _ in range(60)]

    same, again, *others = [turns(*key) for key in (("0", "a"), ("0", "a"), ("1", "a"), ("0", "b"))]
    assert same == again
    assert same not in others


KEEPS_BF16 = replace(INFO, longest_kv={BF16: 512})

# sentence → (routes, what the engine is, field, message)
WRONG = {
    "default is not first": ((TOOLS, DEFAULT), INFO, "routes.0.name", "must be 'default', the route of the model"),
    "a name twice": ((DEFAULT, changed(DEFAULT, model="x")), INFO, "routes.1.name", "'default' is there twice"),
    "an alias twice": ((DEFAULT, changed(TOOLS, model="fake")), INFO, "routes.1.model", "'fake' is there twice"),
    "a precision that cannot be kept": ((DEFAULT,), KEEPS_BF16, "routes.0.precision", "fp8_e4m3: this engine can keep"),
    "a control precision that cannot be kept": (
        (changed(DEFAULT, precision=BF16, control_precision=INT4),),
        KEEPS_BF16,
        "routes.0.control_precision",
        "int4: this engine can keep KV in bf16 only",
    ),
}


@pytest.mark.parametrize(("routes", "info", "param", "message"), WRONG.values(), ids=WRONG.keys())
def test_routes_that_cannot_be_served(routes, info, param, message):
    with pytest.raises(ApiError) as caught:
        check_routes(routes, info)
    assert (caught.value.body.status, caught.value.body.param) == (400, param)
    assert caught.value.body.message.startswith(f"{param}: {message}")


# sentence → (routes after the change, field)
MOVED = {
    "a route is missing": ((DEFAULT,), "routes"),
    "a route is new": ((DEFAULT, TOOLS, changed(TOOLS, name="more", model="m")), "routes.2.name"),
    "an alias has moved": ((DEFAULT, changed(TOOLS, model="m")), "routes.1.model"),
    "nothing has moved": ((DEFAULT, changed(TOOLS, precision=BF16, control_share=0.5)), None),
}


@pytest.mark.parametrize(("routes", "param"), MOVED.values(), ids=MOVED.keys())
def test_a_change_keeps_every_alias(routes, param):
    if param is None:
        return check_same_routes((DEFAULT, TOOLS), routes)
    with pytest.raises(ApiError) as caught:
        check_same_routes((DEFAULT, TOOLS), routes)
    assert caught.value.body.param == param


async def test_requests_run_as_their_route_says_and_are_counted():
    engine, service = FakeEngine(say("hello")), Service(limits=Limits())
    service.attach(engine, (DEFAULT, changed(TOOLS, control_share=1.0)))
    async with running_server(None, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        for model in ("fake", "fake-tools", "fake-tools"):
            reply = await client.post("/v1/completions", json={"model": model, "prompt": ["a", "b"], "n": 2})
            assert reply.json()["model"] == model
        chat = {"model": "fake-tools", "messages": [{"role": "user", "content": "x" * 90}], "max_tokens": 50}
        await client.post("/v1/chat/completions", json=chat)
        models = (await client.get("/v1/models")).json()["data"]
        metrics = (await client.get("/metrics?name[]=pagefleet:route_requests_total")).text
    plain, control = RequestOptions(precision=FP8), RequestOptions(precision=BF16)
    assert engine.options == [
        replace(options, fork_of=given.fork_of)
        for options, given in zip([plain] * 4 + [control] * 9, engine.options, strict=True)
    ]
    assert [(entry["id"], entry["max_model_len"]) for entry in models] == [("fake", 512), ("fake-tools", 512)]
    assert sorted(line for line in metrics.splitlines() if not line.startswith("#")) == [
        'pagefleet:route_requests_total{model_name="fake",precision="bf16",route="default"} 0.0',
        'pagefleet:route_requests_total{model_name="fake",precision="bf16",route="tools"} 5.0',
        'pagefleet:route_requests_total{model_name="fake",precision="fp8_e4m3",route="default"} 2.0',
        'pagefleet:route_requests_total{model_name="fake",precision="fp8_e4m3",route="tools"} 0.0',
    ]


async def test_a_refused_request_takes_no_turn():
    engine, service = FakeEngine(say("x"), max_running=0), Service(limits=Limits())
    service.attach(engine, (changed(TOOLS, name="default", model="fake", control_share=0.05, max_context=None),))
    async with running_server(None, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(20):
            assert (await client.post("/v1/completions", json={"prompt": "a", "n": 2})).status_code == 429
        beams = {"prompt": "a", "use_beam_search": True}
        assert (await client.post("/v1/completions", json=beams)).status_code == 429
        too_long = {"prompt": ["a", "b" * 600], "max_tokens": 1}
        assert (await client.post("/v1/completions", json=too_long)).status_code == 400
    picks = [service.routes.pick("fake", 9).is_control for _ in range(20)]
    assert sum(picks) == 1

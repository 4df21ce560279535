"""Routes: which one a name means, in which precision its requests run, what of it can change."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from pagefleet_engine.api import ModelInfo, RequestOptions
from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.routes import ControlShare, RoutePick, RouteTable, check_routes, check_same_routes
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


# share → how many of 1,000 requests
SHARES = {0.0: 0, 0.001: 1, 0.05: 50, 0.1: 100, 0.29: 290, 1 / 3: 333, 0.5: 500, 0.999: 999, 1.0: 1000}


@pytest.mark.parametrize(("share", "want"), SHARES.items())
def test_a_share_is_exact_and_spread_evenly(share, want):
    control = ControlShare(share)
    picks = [control.next() for _ in range(1000)]
    assert sum(picks) == want
    for length in range(1, 1001):
        assert abs(sum(picks[:length]) - length * share) <= 0.5 + 1e-9


def test_one_in_twenty_is_one_in_every_twenty():
    control = ControlShare(0.05)
    picks = [control.next() for _ in range(200)]
    assert [i for i, pick in enumerate(picks) if pick] == list(range(9, 200, 20))


def test_what_a_route_picks():
    table = RouteTable((DEFAULT, TOOLS), served_names=("fake", "other"))
    tools = RoutePick(route="tools", precision=FP8, allow_demotion=True, validates=True)
    control = replace(tools, precision=BF16, is_control=True, allow_demotion=False)
    long = replace(tools, precision=BF16, allow_demotion=False)
    picks = [table.pick("fake-tools", num_tokens) for num_tokens in (100, 101, 100, 101, 100, 100, 100)]
    assert picks == [tools, long, control, long, tools, tools, tools]
    assert [table.pick(name, 9).route for name in ("fake", "other")] == ["default", "default"]
    assert table.names == ("fake", "other", "fake-tools")


def test_a_control_that_would_not_fit_into_the_pool_is_none():
    table = RouteTable((DEFAULT, changed(TOOLS, control_share=1.0)), longest={FP8: 80, BF16: 40})
    assert [table.pick("fake-tools", num_tokens).precision for num_tokens in (40, 41)] == [BF16, FP8]


def test_a_share_goes_on_over_a_change_that_leaves_it_alone():
    table = RouteTable((DEFAULT, TOOLS))
    for wanted in (False, True, False, False):
        table.replace((DEFAULT, changed(TOOLS, precision=INT4)))
        assert table.pick("fake-tools", 9).is_control is wanted
    table.replace((DEFAULT, changed(TOOLS, control_share=1.0)))
    assert table.pick("fake-tools", 9).is_control


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
    service.attach(engine, (DEFAULT, TOOLS))
    async with running_server(None, service=service) as server, httpx.AsyncClient(base_url=server.url) as client:
        for model in ("fake", "fake-tools", "fake-tools"):
            reply = await client.post("/v1/completions", json={"model": model, "prompt": ["a", "b"], "n": 2})
            assert reply.json()["model"] == model
        chat = {"model": "fake-tools", "messages": [{"role": "user", "content": "x" * 90}], "max_tokens": 50}
        await client.post("/v1/chat/completions", json=chat)
        models = (await client.get("/v1/models")).json()["data"]
        metrics = (await client.get("/metrics?name[]=pagefleet:route_requests_total")).text
    plain, demotable = RequestOptions(precision=FP8), RequestOptions(precision=FP8, allow_demotion=True)
    control = RequestOptions(precision=BF16)
    assert [(o.precision, o.allow_demotion) for o in engine.options] == [
        (o.precision, o.allow_demotion)
        for o in [plain] * 4 + [demotable] * 2 + [control] * 2 + [demotable] * 4 + [control]
    ]
    assert [(entry["id"], entry["max_model_len"]) for entry in models] == [("fake", 512), ("fake-tools", 512)]
    assert sorted(line for line in metrics.splitlines() if not line.startswith("#")) == [
        'pagefleet:route_requests_total{model_name="fake",precision="bf16",route="default"} 0.0',
        'pagefleet:route_requests_total{model_name="fake",precision="bf16",route="tools"} 2.0',
        'pagefleet:route_requests_total{model_name="fake",precision="fp8_e4m3",route="default"} 2.0',
        'pagefleet:route_requests_total{model_name="fake",precision="fp8_e4m3",route="tools"} 3.0',
    ]

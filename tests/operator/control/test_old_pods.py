"""What reaches pods of an older revision while they are replaced: never another precision than their own."""

import pytest

from pagefleet_engine.contract.control import RuntimeConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.validation import validate
from pagefleet_operator.control.targets import Target, change_for, is_compared, routes_for
from pagefleet_operator.labels import Key
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.manifests.pod import build_pod, render_pod
from pagefleet_operator.manifests.runtime import RouteOverride, runtime_start
from pagefleet_operator.pods import observe_pod
from pagefleet_operator.resources import LLM_SERVICE
from pagefleet_operator.testing import KEY, llm_service
from tests.operator.control.world import World

BF16, FP8, INT8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4
TOOLS = {"name": "tools", "model": "smollm2-tools", "structured": "Validate"}
CHAT = {"name": "chat", "model": "smollm2-chat"}
OLD = {"precision": "fp8_e4m3", "routes": [TOOLS]}
MOVED = {"tools": RouteOverride(precision=BF16, control_share=0.0, may_demote=False)}
STAYED = {"tools": RouteOverride(control_share=0.05)}


def spec_of(*, precision, routes, model=None):
    engine = {"image": "registry.example/engine:1", "kvCache": {"precision": precision}}
    fields = {"engine": engine, "routes": routes} | ({"model": model} if model else {})
    return validate(llm_service(**fields)["spec"])


def pod_of(spec):
    raw = build_pod(render_pod(spec, "smollm2"), Owner(key=Key("models", "smollm2"), uid="owner"), 0)
    raw["metadata"] |= {"uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return observe_pod(raw)


def routes_of(change, overrides, *, old=OLD, began=STAYED):
    """Name, precision, control precision and share of each route of an old pod, once the spec has changed."""
    before, after = spec_of(**old), spec_of(**(old | change))
    config = RuntimeConfig(
        generation=1,
        cap=32,
        max_model_len=4096,
        max_num_batched_tokens=512,
        routes=runtime_start(before, overrides=began).routes,
    )
    asked = change_for(config, Target(routes=routes_for(pod_of(before), after, overrides)))
    routes = config.routes if asked is None or asked.routes is None else asked.routes
    return [(route.name, route.precision, route.control_precision, route.control_share) for route in routes]


DEFAULT = ("default", FP8, BF16, 0.0)
UNCHANGED = [DEFAULT, ("tools", FP8, BF16, 0.05)]
IN_FALLBACK = [DEFAULT, ("tools", BF16, BF16, 0.0)]
OTHER = {"uri": "file:///models/other", "name": "smollm2"}
CASES = {
    "a finer precision waits for new pods": ({"precision": "bf16"}, {}, UNCHANGED),
    "a coarser one, too": ({"precision": "int4"}, STAYED, UNCHANGED),
    "a move reaches old pods of another precision": ({"precision": "int8"}, MOVED, IN_FALLBACK),
    "a route that had moved stays so where the fallback becomes the engine's own": (
        {"precision": "bf16"},
        MOVED,
        IN_FALLBACK,
    ),
    "a route is added: those that are there follow, the new one waits": (
        {"routes": [TOOLS, CHAT]},
        MOVED,
        IN_FALLBACK,
    ),
    "a route is removed: it stays as it is on old pods": ({"routes": []}, {}, UNCHANGED),
    "a route is renamed: the old name stays as it is": (
        {"routes": [TOOLS | {"name": "calls"}]},
        {"calls": MOVED["tools"]},
        UNCHANGED,
    ),
    "a route gets another alias: the old one stays as it is": (
        {"routes": [TOOLS | {"model": "smollm2-calls"}]},
        MOVED,
        UNCHANGED,
    ),
    "another policy holds at once": (
        {"routes": [TOOLS | {"kvPrecision": {"policy": "Off"}}]},
        {"tools": RouteOverride(control_share=0.0)},
        [DEFAULT, ("tools", FP8, BF16, 0.0)],
    ),
    "another policy and another precision: the policy holds at once": (
        {"precision": "bf16", "routes": [TOOLS | {"kvPrecision": {"policy": "Off"}}]},
        {"tools": RouteOverride(control_share=0.0)},
        [DEFAULT, ("tools", FP8, BF16, 0.0)],
    ),
    "another fallback holds at once": (
        {"routes": [TOOLS | {"kvPrecision": {"fallback": "int8"}}]},
        STAYED,
        [DEFAULT, ("tools", FP8, INT8, 0.05)],
    ),
    "a fallback that is coarser than the old pod's own is not taken": (
        {"precision": "int4", "routes": [TOOLS | {"kvPrecision": {"fallback": "int4"}}]},
        {"tools": RouteOverride(precision=INT4, control_share=0.0)},
        [DEFAULT, ("tools", FP8, FP8, 0.0)],
    ),
    "another model's decisions are not about old pods": ({"model": OTHER}, MOVED, UNCHANGED),
}


@pytest.mark.parametrize(("change", "overrides", "want"), CASES.values(), ids=CASES.keys())
def test_what_an_old_pod_gets(change, overrides, want):
    assert routes_of(change, overrides) == want


COMPARED = {
    "another image": ({}, True),
    "other routes": ({"routes": [TOOLS, CHAT]}, True),
    "another precision": ({"precision": "bf16"}, False),
    "another model": ({"model": OTHER}, False),
}


@pytest.mark.parametrize(("change", "want"), COMPARED.values(), ids=COMPARED.keys())
def test_whose_answers_count(change, want):
    assert is_compared(pod_of(spec_of(**OLD)), spec_of(**(OLD | change))) is want


async def test_a_new_precision_reaches_no_old_pod_while_it_serves():
    world = World()
    engine = {"image": "registry.example/engine:1", "kvCache": {"precision": "fp8_e4m3"}}
    await world.make(engine=engine, replicas=3, routes=[TOOLS])
    world.numbers = {"running": 20, "usage": 0.8}
    await world.pass_time(70)
    old = dict(world.engines.engines)
    patch = {"spec": {"engine": {"kvCache": {"precision": "bf16"}}}}
    await world.cluster.patch(LLM_SERVICE, *KEY, patch)
    await world.reconciler(KEY)
    for _ in range(3):
        await world.look()
    assert {route.precision for engine in old.values() for route in engine.config.routes} == {FP8}
    served = [raw for raw in world.pods() if raw["metadata"]["uid"] in old]
    assert len(served) >= 2, "some of them still serve"

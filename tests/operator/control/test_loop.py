"""The loop with everything around it: from what engines report to what they are set to, and what people read of it."""

from datetime import timedelta

import pytest

from pagefleet_engine.contract.control import RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.errors import EngineUnreachableError, UnreachableError
from pagefleet_operator.labels import RUNTIME_CONFIG, Key
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.resources import AUTOSCALER, LLM_SERVICE, POD
from pagefleet_operator.testing import KEY
from tests.operator.control.world import World

ENGINE = {"image": "registry.example/engine:1", "maxNumSeqs": {"initial": 32, "min": 4, "max": 32}}
SCALED = {"engine": ENGINE, "autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
TOOLS = {"name": "tools", "model": "smollm2-tools", "structured": "Validate"}


@pytest.fixture
def world():
    return World()


def only(engines):
    (engine,) = engines.engines.values()
    return engine


async def test_swapping_cuts_the_cap_of_the_engine_and_says_why(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    assert only(world.engines).config.cap == 15
    [decision] = (await world.status())["decisions"]
    assert (decision["remedy"], decision["reason"], decision["from"], decision["to"]) == (
        "Tune",
        "RequestsSwapped",
        "32",
        "15",
    )
    assert "RequestsSwapped" in world.events()
    await world.look()
    assert (await world.status())["pods"][0]["maxNumSeqs"] == 15
    assert (await world.status())["tuning"]["maxNumSeqs"] == 15


async def test_advisory_records_and_changes_nothing(world):
    await world.make(engine=ENGINE, tuning={"mode": "Advisory"})
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    assert only(world.engines).config.cap == 32
    [decision] = (await world.status())["decisions"]
    assert (decision["reason"], decision["advisory"]) == ("RequestsSwapped", True)
    assert "RequestsSwapped" not in world.events()
    assert (await world.condition("TuningActive"))[:2] == ("False", "Advisory")


async def test_a_queue_that_no_cap_ends_adds_a_replica_which_starts_with_the_cap_of_now(world):
    await world.make(**SCALED)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    world.numbers = {"running": 15, "waiting": 40, "usage": 0.97, "swaps": 3, "preemptions": 3}
    await world.pass_time(300)
    assert ("Scale", "QueueAboveTarget") in await world.reasons()
    assert (await world.status())["desiredReplicas"] >= 2
    annotations = world.pods()[-1]["metadata"]["annotations"]
    assert '"cap":15' in annotations[RUNTIME_CONFIG]


async def test_a_steady_service_costs_no_write(world):
    await world.make(**SCALED)
    world.numbers = {"running": 3, "usage": 0.4}
    await world.pass_time(400)
    world.cluster.take_writes()
    world.numbers = {"running": 4, "usage": 0.41}
    await world.pass_time(600)
    assert world.cluster.take_writes() == []


async def test_after_a_restart_of_the_operator_the_caps_and_decisions_are_known(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    await world.look()
    before = await world.status()
    world.start_operator()
    await world.settle()
    await world.pass_time(60)
    after = await world.status()
    assert after["decisions"] == before["decisions"]
    assert after["tuning"] == before["tuning"]
    assert only(world.engines).config.cap == 15


async def test_an_engine_that_was_restarted_while_the_operator_was_away_gets_its_cap_again(world):
    await cut_to_15(world)
    world.start_operator()
    world.restart_engine(routes=only(world.engines).config.routes)
    await world.settle()
    assert (await world.status())["pods"][0]["maxNumSeqs"] == 15, "reconciles before the first look keep it"
    await world.pass_time(10)
    assert only(world.engines).config.cap == 15
    assert (await world.status())["pods"][0]["restarts"] == 1


async def test_an_engine_that_crashed_before_and_came_back_after_the_operator_did_gets_its_cap_again(world):
    await cut_to_15(world)
    world.restart_engine(routes=only(world.engines).config.routes)
    [raw] = world.pods()
    raw["status"]["conditions"][1]["status"] = "False"
    await world.reconciler(KEY)
    await world.loop.look_at([KEY])
    await world.reconciler(KEY)
    assert (await world.status())["pods"][0]["maxNumSeqs"] == 15, "it is not measured now"
    world.start_operator()
    await world.reconciler(KEY)
    await world.loop.look_at([KEY])
    await world.settle()
    await world.pass_time(10)
    assert only(world.engines).config.cap == 15


async def test_a_pod_that_is_made_before_the_first_look_starts_with_what_was_decided(world):
    await in_fallback(world)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    await world.look()
    world.start_operator()
    [old] = world.pods()
    await world.cluster.delete(POD, old["metadata"]["namespace"], old["metadata"]["name"], uid=old["metadata"]["uid"])
    await world.reconciler(KEY)
    start = RuntimeStart.model_validate_json(world.pods()[-1]["metadata"]["annotations"][RUNTIME_CONFIG])
    assert (start.cap, start.routes[1].precision, start.routes[1].control_share) == (15, Precision.BF16, 0.0)


async def test_an_engine_that_was_restarted_gets_its_cap_again(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    world.numbers = {"running": 5, "usage": 0.3}
    [raw] = world.pods()
    world.engines.add(raw["metadata"]["uid"])
    raw["status"]["containerStatuses"][0]["restartCount"] = 1
    await world.reconciler(KEY)
    await world.pass_time(30)
    assert only(world.engines).config.cap == 15


async def cut_to_15(world):
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    world.numbers = {"running": 5, "usage": 0.3, "swaps": 3, "preemptions": 3}
    await world.pass_time(10)
    assert only(world.engines).config.cap == 15


def meddle(world, **values):
    """Somebody else changes the engine."""
    engine = only(world.engines)
    engine.config = engine.config.model_copy(update={"generation": engine.config.generation + 1} | values)


async def test_a_cap_that_somebody_else_moved_is_applied_again_in_the_next_look(world):
    await cut_to_15(world)
    meddle(world, cap=30)
    await world.look()
    assert only(world.engines).config.cap == 15


async def test_routes_that_somebody_else_moved_are_applied_again_within_a_minute(world):
    await cut_to_15(world)
    before = only(world.engines).config.routes
    moved = (before[0], before[1].model_copy(update={"precision": Precision.BF16}))
    meddle(world, routes=moved)
    await world.pass_time(65)
    assert only(world.engines).config.routes == before


async def test_an_engine_that_does_not_answer_holds_and_is_told(world):
    await world.make(**SCALED)
    await world.pass_time(10)
    [raw] = world.pods()
    world.engines.unreachable.add(raw["metadata"]["uid"])
    await world.pass_time(60)
    status, reason, message = await world.condition("MetricsAvailable")
    assert (status, reason) == ("False", "EngineUnreachable")
    assert message == f"{raw['metadata']['name']}: pod {raw['metadata']['name']}: no answer"
    assert await world.reasons() == []


async def test_another_autoscaler_is_told_and_holds_the_replicas(world):
    hpa = {
        "metadata": {"name": "web", "namespace": KEY.namespace},
        "spec": {"scaleTargetRef": {"apiVersion": "pagefleet.io/v1alpha1", "kind": LLM_SERVICE.kind, "name": KEY.name}},
    }
    await world.cluster.create(AUTOSCALER, hpa)
    await world.make(**SCALED)
    world.numbers = {"running": 32, "waiting": 100, "usage": 0.9}
    await world.pass_time(400)
    assert (await world.condition("AbleToScale"))[:2] == ("False", "ForeignAutoscaler")
    assert len(world.pods()) == 1


async def test_paused_looks_and_changes_nothing(world):
    await world.make(engine=ENGINE, paused=False)
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"paused": True}})
    await world.settle()
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.pass_time(30)
    assert only(world.engines).config.cap == 32
    assert world.engines.changes == []


async def test_routes_that_fail_in_fp8_alone_move_to_bf16(world):
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    valid = fp8_failed = control_valid = 0
    states = []
    for _ in range(300):
        valid, fp8_failed, control_valid = valid + 8, fp8_failed + 2, control_valid + 5
        world.structured = [
            ("tools", "fp8_e4m3", "valid", valid),
            ("tools", "fp8_e4m3", "schema_violation", fp8_failed),
            ("tools", "bf16", "valid", control_valid),
        ]
        await world.look()
        route = (await world.status())["routes"][1]
        states.append(route["state"])
        if route["state"] == "Fallback":
            break
    assert list(dict.fromkeys(states)) == ["Normal", "Testing", "Fallback"]
    assert only(world.engines).config.routes[1].precision is Precision.BF16
    assert (await world.condition("PrecisionFallback"))[0] == "True"


async def test_one_service_that_cannot_be_looked_at_hides_no_other(world, caplog):
    await world.make(engine=ENGINE)
    world.fleets.observations[Key("models", "broken")] = None
    await world.loop.look_at([Key("models", "broken"), KEY])
    assert KEY in world.fleets.views
    assert "models/broken: the look at its engines failed" in caplog.text


async def test_a_refused_change_is_tried_again(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    [raw] = world.pods()
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    world.engines.fail_next("change_config", raw["metadata"]["uid"], EngineUnreachableError("pod x: no answer"))
    await world.look()
    assert only(world.engines).config.cap == 32
    await world.look()
    assert only(world.engines).config.cap == 15
    status, reason, message = await world.condition("TuningActive")
    assert (status, reason) == ("Unknown", "EngineNotSet")
    assert message.endswith("pod x: no answer")
    await world.look()
    assert await world.condition("TuningActive") == ("True", "AsExpected", "spec.tuning.mode is Auto.")


async def test_what_is_gone_is_forgotten(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    raw = await world.cluster.get(LLM_SERVICE, *KEY)
    await world.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    await world.reconciler(KEY)
    world.loop._forget()
    assert world.loop._states == {}
    assert world.fleets.views == {}


def test_the_pace_changes_times_and_nothing_else():
    usual, fast = LoopSettings(), LoopSettings().paced(0.2)
    assert (fast.look_every_s, fast.window_s, fast.turn_s) == (1.0, 12.0, 720.0)
    assert (fast.cut_factor, fast.kv_room, fast.min_observations) == (
        usual.cut_factor,
        usual.kv_room,
        usual.min_observations,
    )


async def test_a_busy_route_under_test_is_looked_at_sooner(world):
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    look, due = world.loop._guarded_look, []

    async def noted(key):
        due.append(await look(key))

    world.loop._guarded_look = noted
    for number in range(1, 30):
        world.structured = [("tools", "fp8_e4m3", "valid", 100 * number), ("tools", "bf16", "valid", 100 * number)]
        world.structured += [("tools", "fp8_e4m3", "schema_violation", 50 * number)]
        await world.look()
        if (await world.status())["routes"][1]["state"] == "Testing":
            break
    assert (due[0], due[-1]) == (None, world.seconds() + 1.0)


async def in_fallback(world):
    """Until the route tools has left FP8."""
    await world.make(engine=ENGINE, routes=[TOOLS])
    await world.pass_time(10)
    for number in range(1, 200):
        world.structured = [
            ("tools", "fp8_e4m3", "valid", 6 * number),
            ("tools", "fp8_e4m3", "schema_violation", 4 * number),
            ("tools", "bf16", "valid", 5 * number),
        ]
        await world.look()
        if (await world.status())["routes"][1]["state"] == "Fallback":
            return
    pytest.fail("the route stays in FP8")


async def annotate(world, value):
    annotations = {"metadata": {"annotations": {"pagefleet.io/reset-precision": value}}}
    await world.cluster.patch(LLM_SERVICE, *KEY, annotations)
    await world.reconciler(KEY)


async def test_a_person_resets_a_route_once_for_each_text(world):
    await in_fallback(world)
    await annotate(world, "tools today")
    await world.look()
    status = await world.status()
    assert (status["routes"][1]["state"], status["precisionReset"]) == ("Normal", "tools today")
    assert ("Precision", "Reset") in await world.reasons()
    assert only(world.engines).config.routes[1].precision is Precision.FP8_E4M3
    world.start_operator()
    await world.settle()
    await world.pass_time(30)
    assert (await world.reasons()).count(("Precision", "Reset")) == 1


async def test_another_model_begins_with_new_routes(world):
    await in_fallback(world)
    model = {"uri": "file:///models/other", "name": "smollm2"}
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"model": model}})
    await world.reconciler(KEY)
    await world.look()
    assert (await world.status())["routes"][1]["state"] == "Normal"


async def test_a_service_that_is_made_again_is_another_one(world):
    await world.make(engine=ENGINE)
    await world.pass_time(10)
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    raw = await world.cluster.get(LLM_SERVICE, *KEY)
    await world.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    world.run_kubelet()
    world.numbers = {"running": 0}
    await world.make(engine=ENGINE)
    await world.look()
    assert await world.reasons() == []
    assert (await world.status())["tuning"]["maxNumSeqs"] == 32


async def test_a_pod_that_is_made_for_a_new_alias_starts_with_it_at_once(world):
    await world.make(engine=ENGINE, rollout={"maxSurge": 1, "maxUnavailable": 0})
    await world.look()
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"routes": [TOOLS]}})
    await world.reconciler(KEY)
    newest = world.pods()[-1]["metadata"]["annotations"][RUNTIME_CONFIG]
    assert '"model":"smollm2-tools"' in newest


async def test_an_api_server_that_does_not_answer_stops_no_tuning(world):
    await world.make(**SCALED)
    await world.pass_time(10)
    world.cluster.now += timedelta(seconds=60)
    world.cluster.fail_next("find", "horizontalpodautoscalers", UnreachableError("no answer"))
    world.numbers = {"running": 20, "usage": 0.99, "swaps": 3, "preemptions": 3}
    await world.look()
    await world.look()
    assert KEY in world.fleets.views
    assert world.loop._states[KEY].windows != {}

"""Whole reconciles against the fake cluster: what is written, when, and that a settled service costs no write."""

from datetime import timedelta

import pytest

from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD, SERVICE
from pagefleet_operator.testing import KEY, Address, Scene, Write, engine_status, llm_service

OTHER_IMAGE = {"image": "registry.example/engine:2"}
STATUS = Write("patch/status", "llmservices", "smollm2")


@pytest.fixture
def scene():
    return Scene()


async def test_a_new_service_gets_its_children_and_a_status(scene):
    await scene.make()
    assert await scene.reconcile() == [
        Write("create", "services", "smollm2"),
        Write("create", "services", "smollm2-pods"),
        Write("create", "pods", "smollm2-38f068-0"),
        STATUS,
    ]
    assert await scene.condition("Ready") == ("False", "CreatingPods", "0 of 1 pods are made.")
    assert scene.events() == [("Normal", "CreatingPods"), ("Normal", "SpecAccepted"), ("Normal", "CreatingPods")]


async def test_a_ready_pod_makes_the_service_ready_and_then_nothing_is_written(scene):
    await scene.make_settled()
    assert await scene.condition("Ready") == ("True", "AllReplicasReady", "1 of 1 pods serve.")
    scene.cluster.now += timedelta(hours=1)
    assert await scene.reconcile() == []
    assert await scene.reconcile() == []
    assert scene.events() == []
    assert scene.pods() == ["smollm2-38f068-0"]
    assert scene.cluster.names(SERVICE) == ["smollm2", "smollm2-pods"]
    assert scene.cluster.names(BUDGET) == []


async def test_applying_the_same_spec_again_writes_nothing(scene):
    await scene.make_settled()
    await scene.edit(**llm_service()["spec"])
    assert await scene.reconcile() == []


async def test_every_condition_is_always_there(scene):
    await scene.make()
    await scene.reconcile()
    kinds = [condition["type"] for condition in (await scene.status())["conditions"]]
    assert kinds == [
        "Accepted",
        "Available",
        "Progressing",
        "ModelReady",
        "MetricsAvailable",
        "ScalingActive",
        "AbleToScale",
        "ScalingLimited",
        "TuningActive",
        "PrecisionFallback",
        "Draining",
        "Degraded",
        "Ready",
    ]


async def test_the_columns_of_a_settled_service(scene):
    await scene.make_settled(engine=OTHER_IMAGE | {"maxNumSeqs": {"initial": 8, "max": 16}}, replicas=2)
    status = await scene.status()
    assert status["replicasSummary"] == "2/2"
    assert status["tuning"] == {"maxNumSeqs": 8, "capacity": 16}
    assert status["kvCache"] == {"precision": "fp8_e4m3"}
    assert status["selector"] == "pagefleet.io/service=smollm2"
    assert status["url"] == "http://smollm2.models.svc:8000"
    counts = ("replicas", "desiredReplicas", "readyReplicas", "updatedReplicas", "observedGeneration")
    assert [status[name] for name in counts] == [2, 2, 2, 2, 1]


async def test_scaling_up_and_down_also_makes_and_removes_the_budget(scene):
    await scene.make_settled()
    await scene.edit(replicas=3)
    await scene.settle()
    assert len(scene.pods()) == 3
    assert scene.cluster.names(BUDGET) == ["smollm2"]
    await scene.edit(replicas=1)
    await scene.settle()
    assert scene.pods() == ["smollm2-38f068-0"]
    assert scene.cluster.names(BUDGET) == []


async def test_zero_replicas_are_healthy(scene):
    await scene.make_settled(replicas=0)
    assert scene.pods() == []
    assert await scene.says("Ready") == ("True", "ScaledToZero")
    assert await scene.says("Progressing") == ("False", "Settled")


async def test_a_change_replaces_pods_one_by_one(scene):
    await scene.make_settled(replicas=3)
    before = set(scene.pods())
    await scene.edit(engine=OTHER_IMAGE)
    ready = []
    for _ in range(30):
        await scene.reconcile()
        status = await scene.status()
        scene.cluster.run_kubelet()
        scene.cluster.now += timedelta(seconds=1)
        ready.append(status["readyReplicas"])
    assert min(ready) == 2
    assert ready[-1] == 3
    assert not before & set(scene.pods())


async def test_during_a_rollout_the_status_says_so(scene):
    await scene.make_settled(replicas=2)
    await scene.edit(engine=OTHER_IMAGE)
    await scene.reconcile()
    assert await scene.says("Progressing") == ("True", "ReplacingPods")
    await scene.reconcile()
    assert await scene.says("Draining") == ("True", "PodsDraining")
    assert await scene.says("Ready") == ("True", "EnoughReplicasReady")


async def test_a_pod_that_is_deleted_by_hand_is_replaced_under_another_name(scene):
    await scene.make_settled()
    lost = scene.only_pod()
    raw = await scene.cluster.get(POD, "models", lost)
    await scene.cluster.delete(POD, "models", lost, uid=raw["metadata"]["uid"])
    scene.cluster.take_writes()
    assert await scene.reconcile() == [Write("create", "pods", "smollm2-38f068-1"), STATUS]


async def test_paused_reports_and_changes_nothing(scene):
    await scene.make_settled()
    await scene.edit(paused=True, replicas=3)
    scene.set_pod(engine_status({"running": {}}))
    assert await scene.reconcile() == [STATUS]
    assert await scene.says("Progressing") == ("False", "Paused")
    assert (await scene.status())["readyReplicas"] == 0


async def test_a_child_that_was_edited_or_deleted_by_hand_is_repaired(scene):
    await scene.make_settled(replicas=2)
    await scene.cluster.patch(SERVICE, *KEY, {"spec": {"selector": {"app": "x"}}})
    headless = scene.cluster.objects.pop(Address("services", "models", "smollm2-pods"))
    await scene.cluster.patch(BUDGET, *KEY, {"spec": {"minAvailable": 0}})
    scene.cluster.take_writes()
    assert await scene.reconcile() == [
        Write("patch", "services", "smollm2"),
        Write("create", "services", "smollm2-pods"),
        Write("patch", "poddisruptionbudgets", "smollm2"),
    ]
    assert headless["spec"] == (await scene.cluster.get(SERVICE, "models", "smollm2-pods"))["spec"]
    assert (await scene.cluster.get(SERVICE, *KEY))["spec"]["selector"] == {"pagefleet.io/service": "smollm2"}


async def test_a_service_that_is_being_deleted_is_left_to_garbage_collection(scene):
    await scene.make_settled()
    address = Address("llmservices", *KEY)
    scene.cluster.objects[address]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    scene.cluster.run_kubelet()
    scene.cluster.finish_pod("models", scene.only_pod())
    assert await scene.reconcile() == []


async def test_deleting_a_service_takes_its_children(scene):
    await scene.make_settled(replicas=2)
    raw = await scene.cluster.get(LLM_SERVICE, *KEY)
    await scene.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    assert await scene.reconciler(KEY) is None
    scene.cluster.run_kubelet()
    left = {address.plural for address in scene.cluster.objects} - {"events"}
    assert left == set()


async def test_a_service_that_is_made_again_waits_for_no_name(scene):
    await scene.make_settled()
    raw = await scene.cluster.get(LLM_SERVICE, *KEY)
    await scene.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    await scene.make()
    assert Write("create", "pods", "smollm2-38f068-1") in await scene.reconcile()
    assert await scene.says("Degraded") == ("False", "AsExpected")

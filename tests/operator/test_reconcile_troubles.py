"""Reconciles of services in trouble: what is told, what is left alone, and that nothing is lost."""

from datetime import timedelta

import pytest

from pagefleet_operator.errors import ApiError, ConflictError, NamespaceEndsError, NotFoundError, UnreachableError
from pagefleet_operator.resources import POD, SERVICE
from pagefleet_operator.testing import KEY, Scene, Write, engine_status

OTHER_IMAGE = {"image": "registry.example/engine:2"}
STATUS = Write("patch/status", "llmservices", "smollm2")


@pytest.fixture
def scene():
    return Scene()


async def test_a_crashing_pod_is_kept_and_its_last_words_are_told(scene):
    await scene.make()
    await scene.reconcile()
    pod = scene.only_pod()
    message = "loading weights\nRuntimeError: boom"
    scene.set_pod(engine_status({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 1, "message": message}))
    assert await scene.reconcile() == [Write("patch/status", "pods", pod), STATUS]
    want = f"{pod}: the engine ended with exit code 1: RuntimeError: boom"
    assert await scene.condition("Ready") == ("False", "CrashLoopBackOff", want)
    assert scene.only_pod() == pod
    assert ("Warning", "CrashLoopBackOff") in scene.events()
    assert await scene.reconcile() == []


async def test_an_engine_that_has_served_and_is_unready_does_not_load_its_model(scene):
    await scene.make_settled()
    status = engine_status({"running": {"startedAt": "2026-01-01T00:00:10Z"}})
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:09:00Z"}
    scene.set_pod(status | {"conditions": [lost]})
    await scene.reconcile()
    want = f"{scene.only_pod()} has served, and fails its readiness probe now; its process still runs."
    assert await scene.condition("ModelReady") == ("False", "EngineNotReady", want)
    (pod,) = (await scene.status())["pods"]
    assert (pod["state"], pod["reason"]) == ("Failing", "EngineNotReady")
    scene.set_pod(status | {"conditions": [lost | {"lastTransitionTime": "2026-01-01T00:00:09Z"}]})
    await scene.reconcile()
    assert await scene.says("ModelReady") == ("False", "ModelLoading")


async def test_a_missing_model_is_told_in_the_engines_words(scene):
    await scene.make()
    await scene.reconcile()
    words = "--model /models/smollm2: no such file or folder"
    scene.set_pod(engine_status({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 2, "message": words}))
    await scene.reconcile()
    assert await scene.condition("ModelReady") == ("False", "ModelMissing", f"{scene.only_pod()}: {words}")
    assert await scene.says("Ready") == ("False", "ModelMissing")


async def test_a_missing_image_is_told_with_its_name(scene):
    await scene.make()
    await scene.reconcile()
    scene.set_pod(engine_status({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}))
    await scene.reconcile()
    status, reason, message = await scene.condition("Ready")
    assert (status, reason) == ("False", "ImagePullFailed")
    assert "registry.example/engine:1" in message


async def test_a_bad_change_keeps_the_old_pods_serving(scene):
    await scene.make_settled(replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
    await scene.edit(engine=OTHER_IMAGE)
    await scene.reconcile()
    (new,) = [name for name in scene.pods() if "38f068" not in name]
    scene.set_pod(engine_status({"waiting": {"reason": "ErrImagePull", "message": "not found"}}), new)
    for _ in range(5):
        await scene.reconcile()
    assert len(scene.pods()) == 3
    assert await scene.says("Available") == ("True", "AllReplicasReady")
    assert await scene.says("Ready") == ("False", "ImagePullFailed")


async def test_a_failed_pod_is_replaced_but_not_in_a_hurry(scene):
    await scene.make_settled()
    name = scene.only_pod()
    scene.cluster.set_pod("models", name, {"phase": "Failed", "reason": "Evicted", "conditions": []})
    assert await scene.reconcile() == [STATUS]
    assert await scene.says("Degraded") == ("True", "PodFailed")
    scene.cluster.now += timedelta(seconds=11)
    assert await scene.reconcile() == [
        Write("delete", "pods", name),
        Write("create", "pods", "smollm2-38f068-1"),
    ]


async def test_a_pod_on_a_node_that_does_not_answer_is_replaced_and_named(scene):
    await scene.make_settled()
    lost = scene.only_pod()
    raw = await scene.cluster.get(POD, "models", lost)
    await scene.cluster.delete(POD, "models", lost, uid=raw["metadata"]["uid"])
    await scene.edit(engine=OTHER_IMAGE)
    grace = timedelta(seconds=raw["spec"]["terminationGracePeriodSeconds"])
    assert await scene.reconciler(KEY) == grace + timedelta(seconds=60)
    assert scene.pods() == [lost]
    scene.cluster.now += grace + timedelta(seconds=60)
    await scene.reconcile()
    assert len(scene.pods()) == 2
    assert await scene.condition("Degraded") == ("True", "NodeLost", f"Their nodes do not answer: {lost}.")


INVALID = {
    "a rule is broken": (
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        "InvalidSpec",
        "spec.rollout: maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
    ),
    "a field that is not built": (
        {"model": {"uri": "oci://registry.example/name", "name": "smollm2"}},
        "NotBuilt",
        "spec.model.uri: fetching models from an oci:// registry is not built yet: use a file://, pvc:// or hf:// URI",
    ),
}


@pytest.mark.parametrize(("change", "reason", "message"), INVALID.values(), ids=INVALID.keys())
async def test_an_unacceptable_change_touches_nothing_but_the_status(scene, change, reason, message):
    await scene.make_settled(replicas=2)
    pods = scene.pods()
    await scene.edit(**change)
    assert await scene.reconcile() == [STATUS]
    assert await scene.condition("Accepted") == ("False", reason, message)
    assert await scene.says("Ready") == ("False", reason)
    assert await scene.says("Available") == ("True", "AllReplicasReady")
    assert (await scene.status())["replicasSummary"] == "2/2"
    assert scene.events() == [("Warning", reason)]
    assert scene.pods() == pods
    assert await scene.reconcile() == []


async def test_an_unacceptable_new_service_gets_a_condition_and_no_children(scene):
    await scene.make(engine=OTHER_IMAGE | {"extraArgs": ["--port", "1"]})
    assert await scene.reconcile() == [STATUS]
    status, reason, message = await scene.condition("Accepted")
    assert (status, reason) == ("False", "InvalidEngineArguments")
    assert message.startswith("spec.engine.extraArgs: --port cannot be an extra argument")


async def test_a_service_of_somebody_else_is_left_alone_and_reported(scene):
    theirs = {"metadata": {"name": "smollm2", "namespace": "models"}, "spec": {"selector": {"app": "theirs"}}}
    await scene.cluster.create(SERVICE, theirs)
    await scene.make()
    assert Write("create", "services", "smollm2") not in await scene.reconcile()
    await scene.settle()
    want = "Not made by the operator, but in its way: Service smollm2. Remove or rename it."
    assert await scene.condition("Degraded") == ("True", "NameTaken", want)
    raw = await scene.cluster.get(SERVICE, "models", "smollm2")
    assert raw["spec"] == {"selector": {"app": "theirs"}}


async def test_a_pod_of_somebody_else_is_left_alone_and_reported(scene):
    await scene.cluster.create(POD, {"metadata": {"name": "smollm2-38f068-0", "namespace": "models"}, "spec": {}})
    await scene.make()
    await scene.reconcile()
    status, reason, message = await scene.condition("Degraded")
    assert (status, reason) == ("True", "NameTaken")
    assert message.startswith("Pod smollm2-38f068-0 exists and was not made for this service")
    scene.cluster.take_writes()
    assert await scene.reconcile() == []


async def test_a_pod_that_another_operator_made_meanwhile_is_no_trouble(scene):
    await scene.make()
    pods = await scene.cluster.find(POD, "models", {})
    await scene.reconcile()

    async def old_list(*_):
        scene.cluster.find = find
        return pods

    find, scene.cluster.find = scene.cluster.find, old_list
    assert await scene.reconciler(KEY) == timedelta(milliseconds=100)
    assert await scene.says("Degraded") == ("False", "AsExpected")


async def test_what_the_api_server_refuses_is_told(scene):
    await scene.make()
    scene.cluster.fail_next("create", "pods", ApiError(403, "Forbidden", "exceeded quota: gpus"))
    await scene.reconcile()
    assert await scene.condition("Ready") == ("False", "PodRefused", "exceeded quota: gpus")
    assert ("Warning", "PodRefused") in scene.events()
    await scene.settle()
    assert await scene.says("Ready") == ("True", "AllReplicasReady")


async def test_a_refused_creation_is_tried_again_in_a_minute(scene):
    await scene.make()
    scene.cluster.fail_next("create", "pods", ApiError(403, "Forbidden", "exceeded quota: gpus"))
    assert await scene.reconciler(KEY) == timedelta(seconds=60)


async def test_in_a_namespace_that_ends_nothing_more_is_made_told_or_tried(scene):
    await scene.make_settled(replicas=2)
    for name in scene.pods():
        scene.cluster.finish_pod("models", name)
    scene.cluster.fail_next("create", "pods", NamespaceEndsError(403, "Forbidden", "it is being terminated"))
    assert await scene.reconciler(KEY) is None
    assert scene.cluster.take_writes() == []
    assert scene.events() == []


async def test_orphans_that_would_answer_for_the_service_are_reported(scene):
    labels = {"pagefleet.io/service": "smollm2"}
    metadata = {"name": "left-over", "namespace": "models", "labels": labels}
    await scene.cluster.create(POD, {"metadata": metadata, "spec": {"containers": []}})
    await scene.make()
    await scene.reconcile()
    assert await scene.says("Degraded") == ("True", "NameTaken")


async def test_ten_minutes_without_a_ready_pod_are_told(scene):
    await scene.make()
    await scene.reconcile()
    scene.set_pod({"phase": "Running"} | engine_status({"running": {}}))
    assert await scene.reconciler(KEY) == timedelta(minutes=10)
    scene.cluster.now += timedelta(minutes=10)
    await scene.reconcile()
    assert await scene.says("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert await scene.says("Ready") == ("False", "ProgressDeadlineExceeded")


async def test_a_spec_that_changed_meanwhile_costs_another_look_and_no_lie(scene):
    await scene.make()
    scene.cluster.fail_next("patch", "llmservices", ConflictError(409, "Conflict", "changed"))
    assert await scene.reconciler(KEY) == timedelta(milliseconds=100)


async def test_a_pod_that_is_gone_already_costs_another_look(scene):
    await scene.make_settled(replicas=2)
    await scene.edit(replicas=1)
    scene.cluster.fail_next("patch", "pods", NotFoundError(404, "NotFound", "gone"))
    assert await scene.reconciler(KEY) == timedelta(milliseconds=100)


@pytest.mark.parametrize("verb", ["get", "find", "create"])
async def test_an_outage_is_for_the_queue_to_retry(scene, verb):
    await scene.make()
    plural = {"get": "llmservices", "find": "pods", "create": "services"}[verb]
    scene.cluster.fail_next(verb, plural, UnreachableError("no answer"))
    with pytest.raises(UnreachableError):
        await scene.reconciler(KEY)
    await scene.settle()
    assert await scene.says("Ready") == ("True", "AllReplicasReady")


async def test_an_event_that_cannot_be_written_stops_nothing(scene):
    await scene.make()
    scene.cluster.fail_next("create", "services", UnreachableError("no answer"))
    with pytest.raises(UnreachableError):
        await scene.reconciler(KEY)
    for _ in range(4):
        scene.cluster.fail_next("create", "events", ApiError(403, "Forbidden", "namespace is terminating"))
    await scene.reconcile()
    assert await scene.says("Accepted") == ("True", "SpecAccepted")

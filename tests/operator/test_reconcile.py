"""Whole reconciles against the fake cluster: what is written, when, and that a settled service costs no write."""

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import BUDGET, EVENT, LLM_SERVICE, POD, SERVICE
from pagefleet_operator.testing import Address, FakeCluster, Write, llm_service, ready_status

KEY = Key("models", "smollm2")
OTHER_IMAGE = {"image": "registry.example/engine:2"}
STATUS = Write("patch/status", "llmservices", "smollm2")


def engine(state, last=None):
    container = {"name": "engine", "restartCount": 1, "state": state, "lastState": {"terminated": last} if last else {}}
    return {"phase": "Running", "conditions": [], "containerStatuses": [container]}


class Fixture:
    """A cluster with one service, and the operator's way to look at it."""

    def __init__(self):
        self.cluster = FakeCluster()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            metrics=OperatorMetrics(CollectorRegistry()),
            clock=lambda: self.cluster.now,
            identity="test",
        )

    async def make(self, **spec):
        await self.cluster.create(LLM_SERVICE, llm_service(**spec))
        self.cluster.take_writes()

    async def make_settled(self, **spec):
        await self.make(**spec)
        await self.settle()
        self.forget_events()

    async def edit(self, **spec):
        await self.cluster.patch(LLM_SERVICE, *KEY, {"spec": spec})
        self.cluster.take_writes()

    async def reconcile(self):
        await self.reconciler(KEY)
        return self.cluster.take_writes()

    async def settle(self):
        """Reconcile, and let the kubelet do its part, until nothing is written any more."""
        for _ in range(50):
            wrote = await self.reconcile()
            self.run_kubelet()
            if not wrote and not await self.reconcile():
                return
        pytest.fail("the service did not come to rest in 50 reconciles")

    def run_kubelet(self):
        for address, raw in list(self.cluster.objects.items()):
            if address.plural != "pods":
                continue
            if "deletionTimestamp" in raw["metadata"]:
                self.cluster.finish_pod(address.namespace, address.name)
            elif raw["status"] != ready_status():
                self.cluster.set_pod(address.namespace, address.name, ready_status(), node="node-1")

    async def status(self):
        return (await self.cluster.get(LLM_SERVICE, *KEY))["status"]

    async def condition(self, kind):
        found = next(item for item in (await self.status())["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    async def says(self, kind):
        return (await self.condition(kind))[:2]

    def pods(self):
        return self.cluster.names(POD)

    def only_pod(self):
        (name,) = self.pods()
        return name

    def set_pod(self, status, name=None):
        self.cluster.set_pod("models", name or self.only_pod(), status, node="node-1")

    def events(self):
        found = [raw for address, raw in self.cluster.objects.items() if address.plural == EVENT.plural]
        return [(raw["type"], raw["reason"]) for raw in found]

    def forget_events(self):
        for address in [address for address in self.cluster.objects if address.plural == EVENT.plural]:
            del self.cluster.objects[address]


@pytest.fixture
def fixture():
    return Fixture()


async def test_a_new_service_gets_its_children_and_a_status(fixture):
    await fixture.make()
    assert await fixture.reconcile() == [
        Write("create", "services", "smollm2"),
        Write("create", "services", "smollm2-pods"),
        Write("create", "pods", "smollm2-5e0414-0"),
        STATUS,
    ]
    assert await fixture.condition("Ready") == ("False", "CreatingPods", "0 of 1 pods are made.")
    assert fixture.events() == [("Normal", "CreatingPods"), ("Normal", "SpecAccepted"), ("Normal", "CreatingPods")]


async def test_a_ready_pod_makes_the_service_ready_and_then_nothing_is_written(fixture):
    await fixture.make_settled()
    assert await fixture.condition("Ready") == ("True", "AllReplicasReady", "1 of 1 pods serve.")
    fixture.cluster.now += timedelta(hours=1)
    assert await fixture.reconcile() == []
    assert await fixture.reconcile() == []
    assert fixture.events() == []
    assert fixture.pods() == ["smollm2-5e0414-0"]
    assert fixture.cluster.names(SERVICE) == ["smollm2", "smollm2-pods"]
    assert fixture.cluster.names(BUDGET) == []


async def test_applying_the_same_spec_again_writes_nothing(fixture):
    await fixture.make_settled()
    await fixture.edit(**llm_service()["spec"])
    assert await fixture.reconcile() == []


async def test_every_condition_is_always_there(fixture):
    await fixture.make()
    await fixture.reconcile()
    kinds = [condition["type"] for condition in (await fixture.status())["conditions"]]
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


async def test_the_columns_of_a_settled_service(fixture):
    await fixture.make_settled(engine=OTHER_IMAGE | {"maxNumSeqs": {"initial": 8, "max": 16}}, replicas=2)
    status = await fixture.status()
    assert status["replicasSummary"] == "2/2"
    assert status["tuning"] == {"maxNumSeqs": 8, "capacity": 16}
    assert status["kvCache"] == {"precision": "bf16"}
    assert status["selector"] == "pagefleet.io/service=smollm2"
    assert status["url"] == "http://smollm2.models.svc:8000"
    counts = ("replicas", "desiredReplicas", "readyReplicas", "updatedReplicas", "observedGeneration")
    assert [status[name] for name in counts] == [2, 2, 2, 2, 1]


async def test_scaling_up_and_down_also_makes_and_removes_the_budget(fixture):
    await fixture.make_settled()
    await fixture.edit(replicas=3)
    await fixture.settle()
    assert len(fixture.pods()) == 3
    assert fixture.cluster.names(BUDGET) == ["smollm2"]
    await fixture.edit(replicas=1)
    await fixture.settle()
    assert fixture.pods() == ["smollm2-5e0414-0"]
    assert fixture.cluster.names(BUDGET) == []


async def test_zero_replicas_are_healthy(fixture):
    await fixture.make_settled(replicas=0)
    assert fixture.pods() == []
    assert await fixture.says("Ready") == ("True", "ScaledToZero")
    assert await fixture.says("Progressing") == ("False", "Settled")


async def test_a_change_replaces_pods_one_by_one(fixture):
    await fixture.make_settled(replicas=3)
    before = set(fixture.pods())
    await fixture.edit(engine=OTHER_IMAGE)
    ready = []
    for _ in range(20):
        await fixture.reconcile()
        status = await fixture.status()
        fixture.run_kubelet()
        ready.append(status["readyReplicas"])
    assert min(ready) == 2
    assert ready[-1] == 3
    assert not before & set(fixture.pods())


async def test_during_a_rollout_the_status_says_so(fixture):
    await fixture.make_settled(replicas=2)
    await fixture.edit(engine=OTHER_IMAGE)
    await fixture.reconcile()
    assert await fixture.says("Progressing") == ("True", "ReplacingPods")
    await fixture.reconcile()
    assert await fixture.says("Draining") == ("True", "PodsDraining")
    assert await fixture.says("Ready") == ("True", "EnoughReplicasReady")


async def test_a_pod_that_is_deleted_by_hand_is_replaced_under_another_name(fixture):
    await fixture.make_settled()
    lost = fixture.only_pod()
    raw = await fixture.cluster.get(POD, "models", lost)
    await fixture.cluster.delete(POD, "models", lost, uid=raw["metadata"]["uid"])
    fixture.cluster.take_writes()
    assert await fixture.reconcile() == [Write("create", "pods", "smollm2-5e0414-1"), STATUS]


async def test_a_crashing_pod_is_kept_and_its_last_words_are_told(fixture):
    await fixture.make()
    await fixture.reconcile()
    pod = fixture.only_pod()
    message = "loading weights\nRuntimeError: boom"
    fixture.set_pod(engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 1, "message": message}))
    assert await fixture.reconcile() == [STATUS]
    want = f"{pod}: the engine ended with exit code 1: RuntimeError: boom"
    assert await fixture.condition("Ready") == ("False", "CrashLoopBackOff", want)
    assert fixture.only_pod() == pod
    assert ("Warning", "CrashLoopBackOff") in fixture.events()
    assert await fixture.reconcile() == []


async def test_a_missing_model_is_told_in_the_engines_words(fixture):
    await fixture.make()
    await fixture.reconcile()
    words = "--model /models/smollm2: no such file or folder"
    fixture.set_pod(engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 2, "message": words}))
    await fixture.reconcile()
    assert await fixture.condition("ModelReady") == ("False", "ModelMissing", f"{fixture.only_pod()}: {words}")
    assert await fixture.says("Ready") == ("False", "ModelMissing")


async def test_a_missing_image_is_told_with_its_name(fixture):
    await fixture.make()
    await fixture.reconcile()
    fixture.set_pod(engine({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}))
    await fixture.reconcile()
    status, reason, message = await fixture.condition("Ready")
    assert (status, reason) == ("False", "ImagePullFailed")
    assert "registry.example/engine:1" in message


async def test_a_bad_change_keeps_the_old_pods_serving(fixture):
    await fixture.make_settled(replicas=2, rollout={"maxSurge": 1, "maxUnavailable": 0})
    await fixture.edit(engine=OTHER_IMAGE)
    await fixture.reconcile()
    (new,) = [name for name in fixture.pods() if "5e0414" not in name]
    fixture.set_pod(engine({"waiting": {"reason": "ErrImagePull", "message": "not found"}}), new)
    for _ in range(5):
        await fixture.reconcile()
    assert len(fixture.pods()) == 3
    assert await fixture.says("Available") == ("True", "AllReplicasReady")
    assert await fixture.says("Ready") == ("False", "ImagePullFailed")


async def test_a_failed_pod_is_replaced_but_not_in_a_hurry(fixture):
    await fixture.make_settled()
    name = fixture.only_pod()
    fixture.cluster.set_pod("models", name, {"phase": "Failed", "reason": "Evicted", "conditions": []})
    assert await fixture.reconcile() == [STATUS]
    assert await fixture.says("Degraded") == ("True", "PodFailed")
    fixture.cluster.now += timedelta(seconds=11)
    assert await fixture.reconcile() == [
        Write("delete", "pods", name),
        Write("create", "pods", "smollm2-5e0414-1"),
    ]


async def test_a_pod_on_a_node_that_does_not_answer_is_replaced_and_named(fixture):
    await fixture.make_settled()
    lost = fixture.only_pod()
    raw = await fixture.cluster.get(POD, "models", lost)
    await fixture.cluster.delete(POD, "models", lost, uid=raw["metadata"]["uid"])
    await fixture.edit(engine=OTHER_IMAGE)
    grace = timedelta(seconds=raw["spec"]["terminationGracePeriodSeconds"])
    assert await fixture.reconciler(KEY) == grace + timedelta(seconds=60)
    assert fixture.pods() == [lost]
    fixture.cluster.now += grace + timedelta(seconds=60)
    await fixture.reconcile()
    assert len(fixture.pods()) == 2
    assert await fixture.condition("Degraded") == ("True", "NodeLost", f"Their nodes do not answer: {lost}.")


INVALID = {
    "a rule is broken": (
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        "InvalidSpec",
        "spec.rollout: maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
    ),
    "a field that is not built": (
        {"engine": OTHER_IMAGE | {"kvCache": {"precision": "int4"}}},
        "NotBuilt",
        "spec.engine.kvCache.precision: keeping sealed frames in another precision is not built yet: set it to bf16",
    ),
}


@pytest.mark.parametrize(("change", "reason", "message"), INVALID.values(), ids=INVALID.keys())
async def test_an_unacceptable_change_touches_nothing_but_the_status(fixture, change, reason, message):
    await fixture.make_settled(replicas=2)
    pods = fixture.pods()
    await fixture.edit(**change)
    assert await fixture.reconcile() == [STATUS]
    assert await fixture.condition("Accepted") == ("False", reason, message)
    assert await fixture.says("Ready") == ("False", reason)
    assert await fixture.says("Available") == ("True", "AllReplicasReady")
    assert (await fixture.status())["replicasSummary"] == "2/2"
    assert fixture.events() == [("Warning", reason)]
    assert fixture.pods() == pods
    assert await fixture.reconcile() == []


async def test_an_unacceptable_new_service_gets_a_condition_and_no_children(fixture):
    await fixture.make(engine=OTHER_IMAGE | {"extraArgs": ["--port", "1"]})
    assert await fixture.reconcile() == [STATUS]
    status, reason, message = await fixture.condition("Accepted")
    assert (status, reason) == ("False", "InvalidEngineArguments")
    assert message.startswith("spec.engine.extraArgs: --port cannot be an extra argument")


async def test_paused_reports_and_changes_nothing(fixture):
    await fixture.make_settled()
    await fixture.edit(paused=True, replicas=3)
    fixture.set_pod(engine({"running": {}}))
    assert await fixture.reconcile() == [STATUS]
    assert await fixture.says("Progressing") == ("False", "Paused")
    assert (await fixture.status())["readyReplicas"] == 0


async def test_a_service_of_somebody_else_is_left_alone_and_reported(fixture):
    theirs = {"metadata": {"name": "smollm2", "namespace": "models"}, "spec": {"selector": {"app": "theirs"}}}
    await fixture.cluster.create(SERVICE, theirs)
    await fixture.make()
    assert Write("create", "services", "smollm2") not in await fixture.reconcile()
    await fixture.settle()
    want = "Not made by the operator, but in its way: Service smollm2. Remove or rename it."
    assert await fixture.condition("Degraded") == ("True", "NameTaken", want)
    raw = await fixture.cluster.get(SERVICE, "models", "smollm2")
    assert raw["spec"] == {"selector": {"app": "theirs"}}


async def test_a_pod_of_somebody_else_is_left_alone_and_reported(fixture):
    await fixture.cluster.create(POD, {"metadata": {"name": "smollm2-5e0414-0", "namespace": "models"}, "spec": {}})
    await fixture.make()
    await fixture.reconcile()
    status, reason, message = await fixture.condition("Degraded")
    assert (status, reason) == ("True", "NameTaken")
    assert message.startswith("Pod smollm2-5e0414-0 exists and was not made for this service")
    fixture.cluster.take_writes()
    assert await fixture.reconcile() == []


async def test_a_pod_that_another_operator_made_meanwhile_is_no_trouble(fixture):
    await fixture.make()
    pods = await fixture.cluster.find(POD, "models", {})
    await fixture.reconcile()

    async def old_list(*_):
        fixture.cluster.find = find
        return pods

    find, fixture.cluster.find = fixture.cluster.find, old_list
    assert await fixture.reconciler(KEY) == timedelta(milliseconds=100)
    assert await fixture.says("Degraded") == ("False", "AsExpected")


async def test_what_the_api_server_refuses_is_told(fixture):
    await fixture.make()
    fixture.cluster.fail_next("create", "pods", ApiError(403, "Forbidden", "exceeded quota: gpus"))
    await fixture.reconcile()
    assert await fixture.condition("Ready") == ("False", "PodRefused", "exceeded quota: gpus")
    assert ("Warning", "PodRefused") in fixture.events()
    await fixture.settle()
    assert await fixture.says("Ready") == ("True", "AllReplicasReady")


async def test_a_refused_creation_is_tried_again_in_a_minute(fixture):
    await fixture.make()
    fixture.cluster.fail_next("create", "pods", ApiError(403, "Forbidden", "exceeded quota: gpus"))
    assert await fixture.reconciler(KEY) == timedelta(seconds=60)


async def test_a_child_that_was_edited_or_deleted_by_hand_is_repaired(fixture):
    await fixture.make_settled(replicas=2)
    await fixture.cluster.patch(SERVICE, *KEY, {"spec": {"selector": {"app": "x"}}})
    headless = fixture.cluster.objects.pop(Address("services", "models", "smollm2-pods"))
    await fixture.cluster.patch(BUDGET, *KEY, {"spec": {"minAvailable": 0}})
    fixture.cluster.take_writes()
    assert await fixture.reconcile() == [
        Write("patch", "services", "smollm2"),
        Write("create", "services", "smollm2-pods"),
        Write("patch", "poddisruptionbudgets", "smollm2"),
    ]
    assert headless["spec"] == (await fixture.cluster.get(SERVICE, "models", "smollm2-pods"))["spec"]
    assert (await fixture.cluster.get(SERVICE, *KEY))["spec"]["selector"] == {"pagefleet.io/service": "smollm2"}


async def test_a_service_that_is_being_deleted_is_left_to_garbage_collection(fixture):
    await fixture.make_settled()
    address = Address("llmservices", *KEY)
    fixture.cluster.objects[address]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    fixture.run_kubelet()
    fixture.cluster.finish_pod("models", fixture.only_pod())
    assert await fixture.reconcile() == []


async def test_deleting_a_service_takes_its_children(fixture):
    await fixture.make_settled(replicas=2)
    raw = await fixture.cluster.get(LLM_SERVICE, *KEY)
    await fixture.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    assert await fixture.reconciler(KEY) is None
    fixture.run_kubelet()
    left = {address.plural for address in fixture.cluster.objects} - {"events"}
    assert left == set()


async def test_a_service_that_is_made_again_waits_for_no_name(fixture):
    await fixture.make_settled()
    raw = await fixture.cluster.get(LLM_SERVICE, *KEY)
    await fixture.cluster.delete(LLM_SERVICE, *KEY, uid=raw["metadata"]["uid"])
    await fixture.make()
    assert Write("create", "pods", "smollm2-5e0414-1") in await fixture.reconcile()
    assert await fixture.says("Degraded") == ("False", "AsExpected")


async def test_orphans_that_would_answer_for_the_service_are_reported(fixture):
    labels = {"pagefleet.io/service": "smollm2"}
    metadata = {"name": "left-over", "namespace": "models", "labels": labels}
    await fixture.cluster.create(POD, {"metadata": metadata, "spec": {"containers": []}})
    await fixture.make()
    await fixture.reconcile()
    assert await fixture.says("Degraded") == ("True", "NameTaken")


async def test_ten_minutes_without_a_ready_pod_are_told(fixture):
    await fixture.make()
    await fixture.reconcile()
    fixture.set_pod({"phase": "Running"} | engine({"running": {}}))
    assert await fixture.reconciler(KEY) == timedelta(minutes=10)
    fixture.cluster.now += timedelta(minutes=10)
    await fixture.reconcile()
    assert await fixture.says("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert await fixture.says("Ready") == ("False", "ProgressDeadlineExceeded")


async def test_a_spec_that_changed_meanwhile_costs_another_look_and_no_lie(fixture):
    await fixture.make()
    fixture.cluster.fail_next("patch", "llmservices", ConflictError(409, "Conflict", "changed"))
    assert await fixture.reconciler(KEY) == timedelta(milliseconds=100)


async def test_a_pod_that_is_gone_already_costs_another_look(fixture):
    await fixture.make_settled(replicas=2)
    await fixture.edit(replicas=1)
    fixture.cluster.fail_next("delete", "pods", NotFoundError(404, "NotFound", "gone"))
    assert await fixture.reconciler(KEY) == timedelta(milliseconds=100)


@pytest.mark.parametrize("verb", ["get", "find", "create"])
async def test_an_outage_is_for_the_queue_to_retry(fixture, verb):
    await fixture.make()
    plural = {"get": "llmservices", "find": "pods", "create": "services"}[verb]
    fixture.cluster.fail_next(verb, plural, UnreachableError("no answer"))
    with pytest.raises(UnreachableError):
        await fixture.reconciler(KEY)
    await fixture.settle()
    assert await fixture.says("Ready") == ("True", "AllReplicasReady")


async def test_an_event_that_cannot_be_written_stops_nothing(fixture):
    await fixture.make()
    fixture.cluster.fail_next("create", "services", UnreachableError("no answer"))
    with pytest.raises(UnreachableError):
        await fixture.reconciler(KEY)
    for _ in range(4):
        fixture.cluster.fail_next("create", "events", ApiError(403, "Forbidden", "namespace is terminating"))
    await fixture.reconcile()
    assert await fixture.says("Accepted") == ("True", "SpecAccepted")

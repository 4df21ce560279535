"""Whole reconciles against the fake cluster: what is written, when, and that a settled service costs no write."""

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.api.conditions import ConditionType
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD, SERVICE
from pagefleet_operator.testing import FakeCluster, Write, llm_service, ready_status

KEY = Key("models", "smollm2")


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

    async def condition(self, kind):
        raw = await self.cluster.get(LLM_SERVICE, *KEY)
        found = next(item for item in raw["status"]["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]


@pytest.fixture
def fixture():
    return Fixture()


async def test_a_new_service_gets_its_children_and_a_status(fixture):
    await fixture.make()
    assert await fixture.reconcile() == [
        Write("create", "services", "smollm2"),
        Write("create", "services", "smollm2-pods"),
        Write("create", "pods", "smollm2-5e0414-0"),
        Write("patch/status", "llmservices", "smollm2"),
    ]
    assert await fixture.condition(ConditionType.READY) == ("False", "CreatingPods", "0 of 1 pods are made.")


async def test_a_ready_pod_makes_the_service_ready_and_then_nothing_is_written(fixture):
    await fixture.make()
    await fixture.settle()
    assert await fixture.condition(ConditionType.READY) == ("True", "AllReplicasReady", "1 of 1 pods serve.")
    fixture.cluster.now += timedelta(hours=1)
    assert await fixture.reconcile() == []
    assert await fixture.reconcile() == []
    assert fixture.cluster.names(POD) == ["smollm2-5e0414-0"]
    assert fixture.cluster.names(SERVICE) == ["smollm2", "smollm2-pods"]
    assert fixture.cluster.names(BUDGET) == []

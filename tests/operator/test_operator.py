"""Watches, queue, reconciler and resync together on the fake cluster, with events that are lost, doubled or late."""

import asyncio
import random
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.handlers import owner_key
from pagefleet_operator.health import Health
from pagefleet_operator.labels import LEAVING, Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import LLM_SERVICE, POD
from pagefleet_operator.resync import Resync
from pagefleet_operator.testing import FakeCluster, llm_service
from pagefleet_operator.work_queue import WorkQueue

KEYS = [Key("models", name) for name in ("a", "b", "c")]


def woken(raw):
    metadata = raw["metadata"]
    return Key(metadata["namespace"], metadata["name"]) if raw["kind"] == LLM_SERVICE.kind else owner_key(raw)


class Operator:
    """What `process` puts together, without Kopf, the lease and time."""

    def __init__(self, cluster, deliver):
        metrics = OperatorMetrics(CollectorRegistry())
        reconciler = Reconciler(
            cluster=cluster,
            metrics=metrics,
            clock=lambda: cluster.now,
            identity="test",
            fleets=Fleets(monotonic=cluster.seconds),
        )
        self.queue = WorkQueue(reconciler, metrics=metrics, random=lambda: 0.0)
        self.resync = Resync(
            cluster=cluster,
            add=self.queue.add,
            health=Health(monotonic=lambda: 0.0, max_silence_s=1),
            clock=lambda: cluster.now,
            random=lambda: 0.0,
            namespaces=(),
            period_s=1,
        )
        cluster.watchers.append(lambda _, raw: deliver(self.queue.add, woken(raw)))


@asynccontextmanager
async def running(cluster, deliver):
    operator = Operator(cluster, deliver)
    task = asyncio.create_task(operator.queue.run(workers=3))
    yield operator
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def always(add, key):
    if key is not None:
        add(key)


async def settle(operator, cluster, *, with_resync=False):
    for _ in range(30):
        await operator.queue.settle()
        cluster.take_writes()
        cluster.run_kubelet()
        if with_resync:
            await operator.resync.look_at_all()
        await operator.queue.settle()
        if is_draining(cluster):
            pass_time(operator, cluster)
        elif not cluster.take_writes():
            return
    pytest.fail("the services did not come to rest")


def is_draining(cluster):
    pods = [raw["metadata"] for address, raw in cluster.objects.items() if address.plural == POD.plural]
    return any(LEAVING in metadata.get("annotations", {}) for metadata in pods)


def pass_time(operator, cluster):
    cluster.now += timedelta(seconds=1)
    for key in KEYS:
        operator.queue.add(key)


async def states(cluster):
    found = [await cluster.get(LLM_SERVICE, *key) for key in KEYS]
    return [(raw["status"]["replicasSummary"], raw["status"]["observedGeneration"]) for raw in found]


async def test_events_alone_bring_services_to_rest():
    cluster = FakeCluster()
    async with running(cluster, always) as operator:
        for key in KEYS:
            await cluster.create(LLM_SERVICE, llm_service(key.name, key.namespace, replicas=2))
        await settle(operator, cluster)
        assert await states(cluster) == [("2/2", 1)] * 3
        await cluster.patch(LLM_SERVICE, *KEYS[0], {"spec": {"engine": {"image": "registry.example/engine:2"}}})
        await settle(operator, cluster)
        assert await states(cluster) == [("2/2", 2), ("2/2", 1), ("2/2", 1)]


@pytest.mark.parametrize("seed", range(10))
async def test_lost_and_doubled_events_change_nothing_in_the_end(seed):
    chance = random.Random(seed)

    def deliver(add, key):
        if key is not None:
            for _ in range(chance.choice([0, 0, 1, 2])):
                add(key)

    cluster = FakeCluster()
    async with running(cluster, deliver) as operator:
        for key in KEYS:
            await cluster.create(LLM_SERVICE, llm_service(key.name, key.namespace, replicas=2))
        await settle(operator, cluster, with_resync=True)
        for key in KEYS:
            await cluster.patch(LLM_SERVICE, *key, {"spec": {"replicas": 1}})
        await settle(operator, cluster, with_resync=True)
    assert await states(cluster) == [("1/1", 2)] * 3

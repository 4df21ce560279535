"""Whole services under random histories and under a failure at every write: they come to rest, and rest is quiet.

The cluster is the fake one, the kubelet is this file: it makes pods ready, breaks them, ends them.
"""

import asyncio
import copy
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.errors import UnreachableError
from pagefleet_operator.gather import gather
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.observe import observe
from pagefleet_operator.plan import decide
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import LLM_SERVICE, SERVICE
from pagefleet_operator.steps import Create, Delete
from pagefleet_operator.testing import KEY, FakeCluster, llm_service

METRICS = OperatorMetrics(CollectorRegistry())

BROKEN = {
    "crash": {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}},
    "image": {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}, "lastState": {}},
    "model": {"state": {}, "lastState": {"terminated": {"exitCode": 2, "message": "--model /x: no such file"}}},
    "loads": {"state": {"running": {}}, "lastState": {}},
}


class World:
    """A cluster, one service in it, and time."""

    def __init__(self, cluster=None):
        self.cluster = cluster or FakeCluster()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            metrics=METRICS,
            clock=lambda: self.cluster.now,
            identity="test",
            fleets=Fleets(monotonic=self.cluster.seconds),
        )

    def pods(self):
        return sorted(address.name for address in self.cluster.objects if address.plural == "pods")

    def raw(self, name):
        return next(raw for address, raw in self.cluster.objects.items() if address[0] == "pods" and address[2] == name)

    async def check_plan(self):
        gathered = await gather(KEY, self.cluster)
        plan = decide(observe(gathered), self.cluster.now)
        made = {(step.resource.kind, step.name) for step in plan.steps if isinstance(step, Create)}
        gone = {(step.resource.kind, step.name) for step in plan.steps if isinstance(step, Delete)}
        assert not made & gone
        assert not made & {("Pod", name) for name in self.pods()}
        again = decide(observe(gathered), self.cluster.now)
        assert plan == again
        return plan

    async def reconcile(self):
        """Whether it went well and time alone will change nothing."""
        self.cluster.now += timedelta(seconds=3)
        try:
            return await self.reconciler(KEY) is None
        except UnreachableError:
            return False

    async def rest(self):
        for _ in range(200):
            self.cluster.take_writes()
            is_done = await self.reconcile()
            self.cluster.run_kubelet()
            if is_done and not self.cluster.take_writes():
                return
        pytest.fail("the service did not come to rest")


async def happen(world, event, number):
    """One thing that may happen to a service."""
    pods = world.pods()
    name = pods[number % len(pods)] if pods else None
    if event == "reconcile":
        if not world.cluster.failures:
            await world.check_plan()
        await world.reconcile()
    elif event == "scale":
        await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"replicas": number % 5}})
    elif event == "image":
        image = f"registry.example/engine:{number % 3}"
        await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"engine": {"image": image}}})
    elif event == "limits":
        rollout = {"maxSurge": number % 3, "maxUnavailable": 1 + number % 2}
        await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"rollout": rollout}})
    elif event == "pause":
        await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"paused": number % 2 == 0}})
    elif event == "invalid":
        precision = "int4" if number % 2 else "bf16"
        await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": {"engine": {"kvCache": {"precision": precision}}}})
    elif event == "unplug":
        raw = await world.cluster.get(SERVICE, *KEY)
        if raw is not None:
            await world.cluster.delete(SERVICE, *KEY, uid=raw["metadata"]["uid"])
    elif event == "kubelet":
        world.cluster.run_kubelet()
    elif event == "outage":
        world.cluster.fail_next("find", "pods", UnreachableError("no answer"))
    elif name is not None:
        break_pod(world, event, name)


def break_pod(world, event, name):
    if event == "evict":
        world.cluster.set_pod("models", name, {"phase": "Failed", "reason": "Evicted", "conditions": []})
    elif event == "kill":
        address = next(address for address in world.cluster.objects if address.name == name and address[0] == "pods")
        if "deletionTimestamp" not in world.raw(name)["metadata"]:
            world.cluster._mark_deleted(address, None)
    elif world.raw(name)["status"].get("phase") != "Failed":
        container = {"name": "engine", "restartCount": 1, **BROKEN[event]}
        status = {"phase": "Running", "conditions": [], "containerStatuses": [container]}
        world.cluster.set_pod("models", name, status, node="node-1")


KINDS = ["reconcile", "scale", "image", "limits", "pause", "invalid", "unplug", "kubelet", "outage", "evict", "kill"]
histories = st.lists(st.tuples(st.sampled_from([*KINDS, *BROKEN]), st.integers(0, 9)), max_size=25)


async def play(history):
    world = World()
    await world.cluster.create(LLM_SERVICE, llm_service(replicas=2))
    for event, number in history:
        await happen(world, event, number)
    spec = {"replicas": 3, "paused": False, "engine": {"kvCache": {"precision": "bf16"}}}
    await world.cluster.patch(LLM_SERVICE, *KEY, {"spec": spec})
    world.cluster.failures.clear()
    await world.rest()
    assert (await world.check_plan()).steps == ()
    status = (await world.cluster.get(LLM_SERVICE, *KEY))["status"]
    assert status["replicasSummary"] == "3/3"
    assert status["updatedReplicas"] == 3
    assert len(world.pods()) == 3
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "AllReplicasReady")


@settings(max_examples=60, deadline=None)
@given(histories)
def test_any_history_comes_to_rest_and_rest_is_quiet(history):
    asyncio.run(play(history))


class FailingCluster(FakeCluster):
    """Fails at one write: before it is carried out, or after, as when the answer is lost."""

    fail_at = -1
    is_after = False
    count = 0

    async def _write(self, call):
        self.count += 1
        if self.count - 1 != self.fail_at:
            return await call
        if self.is_after:
            await call
        else:
            call.close()
        raise UnreachableError("the answer was lost")

    async def create(self, *arguments):
        return await self._write(super().create(*arguments))

    async def patch(self, *arguments, **options):
        return await self._write(super().patch(*arguments, **options))

    async def delete(self, *arguments, **options):
        return await self._write(super().delete(*arguments, **options))


async def story(world):
    """Create, change, scale: to rest after each."""
    await FakeCluster.create(world.cluster, LLM_SERVICE, llm_service(replicas=2))
    await world.rest()
    for change in ({"engine": {"image": "registry.example/engine:2"}}, {"replicas": 1}):
        await FakeCluster.patch(world.cluster, LLM_SERVICE, *KEY, {"spec": change})
        await world.rest()


def end_state(cluster):
    """Everything but events, without what differs from run to run."""
    kept = {}
    for address, raw in cluster.objects.items():
        if address.plural == "events":
            continue
        plain = copy.deepcopy(raw)
        for name in ("uid", "resourceVersion", "creationTimestamp", "ownerReferences"):
            plain["metadata"].pop(name, None)
        plain.get("status", {}).pop("podIP", None)
        for condition in plain.get("status", {}).get("conditions", ()):
            condition.pop("lastTransitionTime", None)
        kept[address] = plain
    return kept


@pytest.mark.parametrize("is_after", [False, True], ids=["before the write", "after the write"])
async def test_a_failure_at_any_write_changes_nothing_in_the_end(is_after):
    reference = World(FailingCluster())
    await story(reference)
    assert reference.cluster.count > 20
    for number in range(reference.cluster.count):
        world = World(FailingCluster())
        world.cluster.fail_at, world.cluster.is_after = number, is_after
        await story(world)
        assert end_state(world.cluster) == end_state(reference.cluster), f"write {number}"

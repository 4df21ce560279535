"""The resync: it finds what the watches missed, leaves alone what is settled, and survives what it meets."""

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.errors import UnreachableError
from pagefleet_operator.gather import gather, gather_all
from pagefleet_operator.health import Health
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import LLM_SERVICE, POD, SERVICE
from pagefleet_operator.resync import Resync
from pagefleet_operator.testing import Address, FakeCluster, llm_service

A, B, C = Key("models", "a"), Key("models", "b"), Key("there", "c")


class EndOfTest(BaseException):
    """Ends the endless loop."""


@pytest.fixture
async def cluster():
    """Three settled services."""
    made = FakeCluster()
    for key in (A, B, C):
        await made.create(LLM_SERVICE, llm_service(key.name, key.namespace, replicas=2))
        await settle(made, key)
    return made


async def settle(cluster, key, fleets=None):
    reconciler = Reconciler(
        cluster=cluster,
        metrics=OperatorMetrics(CollectorRegistry()),
        clock=lambda: cluster.now,
        identity="test",
        fleets=fleets or Fleets(),
    )
    for _ in range(2):
        await reconciler(key)
        cluster.run_kubelet()
    await reconciler(key)


def resync(cluster, *, namespaces=(), rounds=1, fleets=None):
    added, left = [], [None] * (rounds - 1)

    def jitter():
        if not left:
            raise EndOfTest
        left.pop()
        return 0.0

    made = Resync(
        cluster=cluster,
        add=added.append,
        health=Health(monotonic=lambda: 0.0, max_silence_s=1),
        clock=lambda: cluster.now,
        random=jitter,
        namespaces=namespaces,
        period_s=0,
        fleets=fleets or Fleets(),
    )
    return made, added


async def test_settled_services_are_left_alone(cluster):
    loop, added = resync(cluster)
    await loop.look_at_all()
    assert added == []


async def test_bulk_reading_sees_what_single_reading_sees(cluster):
    for key, gathered in await gather_all(None, cluster):
        assert gathered == await gather(key, cluster)


async def test_what_was_missed_is_found(cluster):
    del cluster.objects[Address("services", "models", "a-pods")]
    await cluster.patch(LLM_SERVICE, *C, {"spec": {"replicas": 1}})
    loop, added = resync(cluster)
    await loop.look_at_all()
    assert added == [A, C]


async def test_it_keeps_to_its_namespaces(cluster):
    for key in (A, B, C):
        del cluster.objects[Address(SERVICE.plural, *key)]
    loop, added = resync(cluster, namespaces=("there",))
    await loop.look_at_all()
    assert added == [C]


async def test_an_object_that_cannot_be_understood_hides_no_other(cluster):
    del cluster.objects[Address("llmservices", *A)]["metadata"]["generation"]
    await cluster.patch(LLM_SERVICE, *B, {"spec": {"replicas": 1}})
    loop, added = resync(cluster)
    await loop.look_at_all()
    assert added == [A, B]


@pytest.mark.parametrize("error", [UnreachableError("no answer"), RuntimeError("a bug")], ids=["known", "unknown"])
async def test_it_survives_a_round_that_fails(cluster, error):
    cluster.fail_next("find", "llmservices", error)
    del cluster.objects[Address("services", *A)]
    loop, added = resync(cluster, rounds=2)
    with pytest.raises(EndOfTest):
        await loop.run()
    assert added == [A]


async def test_a_known_service_that_is_not_there_any_more_is_reconciled_away(cluster):
    loop, added = resync(cluster, namespaces=("models",))
    await loop.look_at_all()
    other, _ = resync(cluster, namespaces=("there",), fleets=loop.fleets)
    await other.look_at_all()
    for key in (A, C):
        raw = await cluster.get(LLM_SERVICE, *key)
        await cluster.delete(LLM_SERVICE, *key, uid=raw["metadata"]["uid"])
    await loop.look_at_all()
    assert added == [A]
    await settle(cluster, A, loop.fleets)
    assert loop.fleets.observations.keys() == {B, C}


class SlowCluster(FakeCluster):
    """Something happens after the services were listed and before the pods are."""

    meanwhile = None

    async def find(self, resource, namespace, selector):
        if resource is POD and self.meanwhile is not None:
            happen, self.meanwhile = self.meanwhile, None
            await happen()
        return await super().find(resource, namespace, selector)


async def test_what_a_reconcile_saw_meanwhile_is_newer_than_the_list():
    cluster, fleets = SlowCluster(), Fleets()
    await cluster.create(LLM_SERVICE, llm_service(A.name, A.namespace))
    await settle(cluster, A, fleets)

    async def pause():
        await cluster.patch(LLM_SERVICE, *A, {"spec": {"paused": True}})
        await settle(cluster, A, fleets)

    cluster.meanwhile = pause
    loop, _ = resync(cluster, fleets=fleets)
    await loop.look_at_all()
    assert fleets.observations[A].wanted.spec.paused
    await cluster.patch(LLM_SERVICE, *A, {"spec": {"paused": False}})
    await loop.look_at_all()
    assert not fleets.observations[A].wanted.spec.paused

"""Other people's autoscalers: found beside the looks, by few reads, and only where they mean a service of ours."""

import asyncio

import pytest

from pagefleet_operator.control.autoscalers import READ_EVERY_S, Autoscalers
from pagefleet_operator.errors import ApiError, NotFoundError, UnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.resources import AUTOSCALER
from pagefleet_operator.testing import FakeCluster

WEB = Key("models", "web")


class CountingCluster(FakeCluster):
    """Counts reads; answers them once it is let."""

    def __init__(self):
        super().__init__()
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def find(self, resource, namespace, selector):
        self.reads += 1
        await self.answers.wait()
        return await super().find(resource, namespace, selector)


async def add(cluster, api_version="pagefleet.io/v1beta9", kind="LLMService"):
    target = {"apiVersion": api_version, "kind": kind, "name": WEB.name}
    await cluster.create(
        AUTOSCALER, {"metadata": {"namespace": "models", "name": "hpa"}, "spec": {"scaleTargetRef": target}}
    )


async def look(autoscalers, now_s=0.0):
    """What is known once the reads that a look began are through."""
    autoscalers.find(WEB, now_s)
    await asyncio.gather(*autoscalers._readers.values())
    return autoscalers.find(WEB, now_s)


async def test_two_hundred_services_of_a_namespace_cost_one_read_of_each_kind_a_minute():
    cluster = CountingCluster()
    autoscalers = Autoscalers(cluster=cluster)
    for now_s in (0.0, READ_EVERY_S - 1):
        for number in range(200):
            autoscalers.find(Key("models", f"s{number}"), now_s)
        await asyncio.gather(*autoscalers._readers.values())
    assert cluster.reads == 2
    await look(autoscalers, READ_EVERY_S)
    assert cluster.reads == 4


async def test_a_silent_api_server_delays_nothing_and_what_was_found_last_counts():
    cluster = CountingCluster()
    await add(cluster)
    autoscalers = Autoscalers(cluster=cluster)
    assert await look(autoscalers) == "HorizontalPodAutoscaler hpa"
    cluster.answers.clear()
    for now_s in (60.0, 120.0, 180.0):
        assert autoscalers.find(WEB, now_s) == "HorizontalPodAutoscaler hpa"
        await asyncio.sleep(0)
    assert cluster.reads == 3
    await autoscalers.close()
    assert autoscalers._readers == {}


TARGETS = {
    "ours in any version": ("pagefleet.io/v1", "LLMService", "HorizontalPodAutoscaler hpa"),
    "the same kind of another group": ("other.example/v1", "LLMService", None),
    "another kind": ("apps/v1", "Deployment", None),
    "no group": (None, "LLMService", None),
}


@pytest.mark.parametrize(("api_version", "kind", "want"), TARGETS.values(), ids=TARGETS.keys())
async def test_what_is_taken_for_ours(api_version, kind, want):
    cluster = FakeCluster()
    await add(cluster, api_version, kind)
    assert await look(Autoscalers(cluster=cluster)) == want


FAILURES = {
    "the kind is not there": (NotFoundError(404, "NotFound", "no such kind"), None),
    "it may not be read": (ApiError(403, "Forbidden", "no"), None),
    "an error of the server": (
        ApiError(500, "InternalError", "no"),
        "namespace models: its autoscalers cannot be read",
    ),
    "no answer": (UnreachableError("no answer"), "namespace models: its autoscalers cannot be read: no answer"),
}


@pytest.mark.parametrize(("error", "logged"), FAILURES.values(), ids=FAILURES.keys())
async def test_what_cannot_be_read_counts_as_absent(error, logged, caplog):
    cluster = FakeCluster()
    await add(cluster)
    cluster.fail_next("find", "horizontalpodautoscalers", error)
    autoscalers = Autoscalers(cluster=cluster)
    assert await look(autoscalers) is None
    assert (logged or "") in caplog.text
    assert await look(autoscalers, READ_EVERY_S) == "HorizontalPodAutoscaler hpa"

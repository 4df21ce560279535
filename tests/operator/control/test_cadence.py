"""When services are looked at: each at its own pace, whatever the engines of others do."""

import asyncio
import dataclasses
import time
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest

from pagefleet_operator.fake_engines import FakeEngines
from pagefleet_operator.labels import Key
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.resources import LLM_SERVICE, POD
from pagefleet_operator.testing import KEY, Address, llm_service
from tests.operator.control.world import World

OTHER = Key("models", "other")
SELDOM = LoopSettings(look_every_s=3600.0)
OFTEN = LoopSettings(look_every_s=0.01, stale_after_s=3600.0)


class WatchedEngines(FakeEngines):
    """Says when which service is scraped; engines whose calls are in `hanging` never answer."""

    def __init__(self):
        super().__init__()
        self.scraped = defaultdict(asyncio.Queue)
        self.hanging = set()

    async def read_metrics(self, pod):
        self.scraped[pod.name.split("-")[0]].put_nowait(pod.name)
        await self._hang("read_metrics", pod)
        return await super().read_metrics(pod)

    async def read_config(self, pod):
        await self._hang("read_config", pod)
        return await super().read_config(pod)

    async def _hang(self, method, pod):
        if (method, pod.name.split("-")[0]) in self.hanging:
            await asyncio.Event().wait()


@pytest.fixture
async def world():
    made = World(engines=WatchedEngines())
    await made.make()
    await add_other(made)
    return made


async def add_other(world):
    await world.cluster.create(LLM_SERVICE, llm_service(*reversed(OTHER)))
    for _ in range(3):
        await world.reconciler(OTHER)
        world.run_kubelet()
    await world.reconciler(OTHER)


@asynccontextmanager
async def running(world, settings):
    loop = dataclasses.replace(world.loop, monotonic=time.monotonic, settings=settings)
    world.running = task = asyncio.create_task(loop.run())
    yield loop
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def looks_at(world, service, number=1):
    for _ in range(number):
        looked = asyncio.create_task(world.engines.scraped[service].get())
        await asyncio.wait({looked, world.running}, return_when=asyncio.FIRST_COMPLETED)
        assert looked.done(), "the loop has ended"


async def test_an_engine_that_hangs_delays_the_looks_at_no_other_service(world):
    world.engines.hanging = {("read_metrics", "other")}
    async with running(world, OFTEN):
        await looks_at(world, "smollm2", 10)
    assert world.engines.scraped["other"].qsize() == 1


async def test_a_control_port_that_hangs_delays_the_looks_at_no_other_service(world):
    world.engines.hanging = {("read_config", "other")}
    async with running(world, OFTEN):
        await looks_at(world, "smollm2", 10)
    assert world.engines.scraped["other"].qsize() == 1


async def test_a_service_whose_engine_hangs_is_looked_at_again_before_others_would_be_stale(world):
    world.engines.hanging = {("read_metrics", "other"), ("read_config", "smollm2")}
    settings = LoopSettings().paced(0.02)
    async with running(world, settings) as loop:
        await looks_at(world, "smollm2", 3)
        await looks_at(world, "other", 3)
    [engine] = loop.fleets.views[OTHER].pods.values()
    assert engine.trouble.endswith(": no full answer within 0.1 s")
    [why] = loop._unset[KEY].values()
    assert why.endswith(": its control port gave no full answer within 0.1 s")


def test_a_look_with_all_its_time_outs_ends_before_samples_are_stale_at_any_pace():
    for pace in (0.02, 0.2, 1.0, 10.0):
        settings = LoopSettings().paced(pace)
        assert max(2 * settings.answer_within_s, settings.look_every_s * 1.1) < 0.7 * settings.stale_after_s


async def test_a_hint_means_a_look_now_and_at_that_service_alone(world):
    async with running(world, SELDOM) as loop:
        await looks_at(world, "smollm2")
        await looks_at(world, "other")
        loop.hint(KEY)
        loop.hint(Key("models", "unknown"))
        await looks_at(world, "smollm2")
    assert world.engines.scraped["other"].empty()


async def test_a_look_that_is_due_sooner_comes_sooner(world):
    async with running(world, SELDOM) as loop:
        loop._guarded_look = sooner_once(loop._guarded_look)
        await looks_at(world, "smollm2", 2)


def sooner_once(look):
    async def looked(key):
        await look(key)
        return time.monotonic() - 1

    return looked


async def test_a_look_that_raises_is_followed_by_the_next_one(world, caplog):
    [pod] = [raw for address, raw in world.cluster.objects.items() if is_pod_of(address, "other")]
    world.engines.fail_next("read_metrics", pod["metadata"]["uid"], RuntimeError("a bug"))
    async with running(world, OFTEN):
        await looks_at(world, "other", 3)
    assert caplog.text.count("models/other: the look at its engines failed") == 1


async def test_what_comes_is_followed_and_what_goes_is_forgotten(world):
    world.fleets.forget(OTHER)
    async with running(world, OFTEN) as loop:
        await looks_at(world, "smollm2", 2)
        assert world.engines.scraped["other"].empty()
        await world.reconciler(OTHER)
        await looks_at(world, "other", 2)
        world.fleets.forget(OTHER)
        await looks_at(world, "smollm2", 10)
        assert loop._hints.keys() == loop._states.keys() == {KEY}
        assert OTHER not in world.fleets.views
        await world.reconciler(OTHER)
        await looks_at(world, "other", 2)


async def test_a_service_that_is_deleted_during_a_look_leaves_nothing_behind(world):
    world.engines.hanging = {("read_metrics", "other")}
    world.loop.settings = LoopSettings().paced(0.02)
    world.loop.__post_init__()
    world.running = asyncio.create_task(world.loop.look_at([OTHER]))
    await looks_at(world, "other")
    world.fleets.forget(OTHER)
    await world.running
    assert OTHER not in world.fleets.views


async def test_who_does_not_answer_a_scrape_is_not_asked_for_its_configuration(world):
    [pod] = [raw for address, raw in world.cluster.objects.items() if is_pod_of(address, "smollm2")]
    world.engines.unreachable.add(pod["metadata"]["uid"])
    await world.look()
    assert {method for method, _ in world.engines.calls} == {"read_metrics"}


def is_pod_of(address: Address, service: str):
    return address.plural == POD.plural and address.name.startswith(service)

"""Many engines at once: those that do not answer cost the others nothing, and are heard again when they do."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.control.asking import MOST_AT_ONCE, MOST_OF_ONE_SERVICE, Asking
from pagefleet_operator.fake_engines import FakeEngines
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.pods import observe_pod
from pagefleet_operator.remedies.readings import Readings, ScrapeFailed
from pagefleet_operator.testing import START, ready_status, timestamp
from tests.operator.control.world import metrics_text

TEXT = metrics_text(cap=32, capacity=32, length=512, steps=1)
RAW = {
    "metadata": {"name": "x", "uid": "x", "creationTimestamp": timestamp(START), "labels": {}, "annotations": {}},
    "spec": {},
    "status": ready_status(),
}


class HangingEngines(FakeEngines):
    """Some never answer."""

    def __init__(self, hanging):
        super().__init__()
        self.hanging = {pod.uid for pod in hanging}

    async def read_metrics(self, pod):
        if pod.uid in self.hanging:
            self.calls.append(("read_metrics", pod.name))
            await asyncio.Event().wait()
        return await super().read_metrics(pod)


def pods(service, number):
    made = [replace(observe_pod(RAW), name=f"{service}-{index}", ip="10.0.0.1") for index in range(number)]
    return [replace(pod, uid=pod.name) for pod in made]


def asking(hanging, answering, within_s):
    engines = HangingEngines(hanging)
    for pod in (*hanging, *answering):
        engines.add(pod.uid, metrics=TEXT)
    metrics = OperatorMetrics(CollectorRegistry())
    return Asking(engines=engines, metrics=metrics, random=Random(0).random, within_s=within_s)


async def test_the_answers_by_name_and_why_there_is_none():
    hanging, answering = pods("a", 1), pods("b", 2)
    found = await asking(hanging, answering, 0.01).scrape([*hanging, *answering])
    assert [type(found[name]) for name in ("b-0", "b-1")] == [Readings, Readings]
    assert found["a-0"] == ScrapeFailed("pod a-0: no full answer within 0.01 s")


async def test_a_service_of_which_all_engines_hang_delays_no_other():
    hanging, answering = pods("a", 500), pods("b", 3)
    made = asking(hanging, answering, 3600)
    blocked = asyncio.create_task(made.scrape(hanging))
    found = await made.scrape(answering)
    assert all(isinstance(scraped, Readings) for scraped in found.values())
    assert len(made.engines.calls) == MOST_OF_ONE_SERVICE + 3
    blocked.cancel()
    await asyncio.wait([blocked])


async def test_any_number_of_silent_engines_delays_no_other():
    services, answering = [pods(f"s{number}", 10) for number in range(2 * MOST_AT_ONCE // 10)], pods("b", 3)
    made = asking([pod for service in services for pod in service], answering, 0.02)
    for _ in range(3):
        await asyncio.gather(*map(made.scrape, services))
    assert made._silent == {pod.uid for service in services for pod in service}
    made.within_s = 3600
    blocked = asyncio.gather(*map(made.scrape, services))
    found = await made.scrape(answering)
    assert all(isinstance(scraped, Readings) for scraped in found.values())
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked


async def test_an_engine_that_is_not_asked_for_want_of_a_slot_says_so_and_is_not_taken_for_silent():
    hanging = pods("a", MOST_OF_ONE_SERVICE + 1)
    made = asking(hanging, [], 0.05)
    found = await made.scrape(hanging)
    [left] = [pod.name for pod in hanging if pod.uid not in made._silent]
    assert found[left] == ScrapeFailed(f"pod {left}: was not asked: too many engines do not answer")


async def test_a_silent_engine_that_answers_again_is_heard_among_many_that_do_not():
    hanging = pods("a", 100)
    made = asking(hanging, [], 0.01)
    for _ in range(3):
        await made.scrape(hanging)
    assert len(made._silent) == 100
    made.engines.hanging.remove("a-99")
    for _ in range(200):
        if isinstance((await made.scrape(hanging))["a-99"], Readings):
            break
    assert "a-99" not in made._silent


async def test_the_loop_goes_on_while_a_long_answer_is_read():
    [pod] = pods("a", 1)
    made = asking([], [pod], 3600)
    labels = 'precision="bf16",constrained="false",outcome="valid"'
    series = [f'pagefleet:structured_outputs_total{{route="{number}",{labels}}} 1' for number in range(4000)]
    made.engines.set_metrics(pod.uid, TEXT + "\n".join(series))
    scraping, turns = asyncio.create_task(made.scrape([pod])), 0
    while not scraping.done():
        await asyncio.sleep(0)
        turns += 1
    assert isinstance((await scraping)["a-0"], Readings)
    assert turns > 10


async def test_what_is_gone_is_forgotten():
    hanging = pods("a", 2)
    made = asking(hanging, [], 0.01)
    await made.scrape(hanging)
    made.keep_only({"a-1"})
    assert made._silent == {"a-1"}

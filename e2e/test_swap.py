"""The real model with a pool too small for twenty chats at once: some are swapped to host memory, all are answered."""

from __future__ import annotations

import pytest

from e2e import demo
from e2e.eventually import eventually
from e2e.load.pods import Orders, start_load
from e2e.stories.diary import Diary
from e2e.watch import wait_ready

pytestmark = pytest.mark.e2e

NAME = "swapping"
CHATS = 20
QUESTIONS = [f"Write two sentences about the number {number}." for number in range(CHATS)]


@pytest.fixture(scope="module")
def diary(kube, operator, namespace, built_images):
    service = demo.example_service(built_images["engine-demo"])
    service["metadata"] |= {"name": NAME, "namespace": namespace}
    service["spec"]["model"]["name"] = NAME
    service["spec"]["engine"] |= {
        "maxNumSeqs": {"max": CHATS},
        "kvCache": {"size": "16Mi", "swapSpace": "256Mi"},
        "maxModelLen": 512,
    }
    service["spec"]["tuning"] = {"mode": "Off"}
    kube.apply(service)
    wait_ready(kube, NAME, print, namespace)
    return Diary(kube=kube, name=NAME, namespace=namespace)


def test_twenty_chats_are_answered_from_a_pool_that_holds_fewer(kube, diary, namespace, built_images):
    bodies = [
        {
            "model": NAME,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 128,
            "ignore_eos": True,
            "temperature": 0,
        }
        for question in QUESTIONS
    ]
    orders = Orders(
        service=NAME, bodies=bodies, clients=CHATS, seconds=300, requests=CHATS, path="/v1/chat/completions"
    )
    load = start_load(kube, "chats", namespace, built_images["engine-demo"], orders)
    (pod,) = [pod["name"] for pod in diary.look()["pods"]]
    eventually(lambda: diary.numbers(pod)["swapped"] > 0, "a request is swapped", 120)
    counts = load.wait()
    load.remove()
    assert (counts.done, counts.failed, counts.cut, counts.refused) == (CHATS, 0, 0, 0)
    assert diary.numbers(pod)["swapped"] == 0
    assert diary.numbers(pod)["kv"] == 0

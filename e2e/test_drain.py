"""Pods that leave under streaming load: no stream is cut, no request fails.

PAGEFLEET_SCALE_DOWNS sets how often; `make drain-long` does it twenty times.
"""

from __future__ import annotations

import os

import pytest

from e2e import tiny_model
from e2e.eventually import eventually
from e2e.load.pods import Orders, start_load
from e2e.watch import wait_ready

pytestmark = pytest.mark.e2e

NAME = "drained"
TIMES = int(os.environ.get("PAGEFLEET_SCALE_DOWNS", "2"))
BODY = {"model": NAME, "prompt": "y" * 50, "max_tokens": 600, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def service(kube, operator, namespace, built_images):
    tiny_model.put(kube, NAME, namespace)
    kube.apply(
        {
            "apiVersion": "pagefleet.io/v1alpha1",
            "kind": "LLMService",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": {
                "model": {"uri": tiny_model.URI, "name": NAME},
                "engine": {"image": built_images["engine-demo"], "kvCache": {"size": "16Mi"}, "maxModelLen": 2048},
                "replicas": 2,
                "drain": {"timeout": "120s"},
                "pod": {
                    "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
                    **tiny_model.mounted(NAME),
                },
            },
        }
    )
    wait_ready(kube, NAME, print, namespace)
    eventually(lambda: states(kube, namespace) == ["Serving", "Serving"], "two serving pods")


def states(kube, namespace):
    return sorted(pod["state"] for pod in kube.get("llmservice", NAME, namespace)["status"].get("pods", []))


def scale(kube, namespace, replicas):
    kube.kubectl("scale", "llms", NAME, "-n", namespace, f"--replicas={replicas}")


def test_scaling_down_cuts_no_stream(kube, service, namespace, built_images):
    orders = Orders(service=NAME, bodies=[BODY], clients=6, seconds=60 * TIMES + 60)
    load = start_load(kube, "drain-load", namespace, built_images["engine-demo"], orders)
    eventually(lambda: load.counts().done > 0, "the load has begun")
    seen = set()

    def is_gone():
        seen.update(states(kube, namespace))
        return states(kube, namespace) == ["Serving"]

    for _ in range(TIMES):
        scale(kube, namespace, 1)
        eventually(is_gone, "one pod is left", 180)
        scale(kube, namespace, 2)
        eventually(lambda: states(kube, namespace) == ["Serving", "Serving"], "two serving pods again", 180)
    load.stop()
    counts = load.wait()
    load.remove()
    assert (counts.failed, counts.cut, counts.errors) == (0, 0, ())
    assert counts.done > 6 * TIMES
    assert "Draining" in seen


def test_a_pod_that_drains_comes_back_when_it_is_wanted_again(kube, service, namespace, built_images):
    before = {pod["metadata"]["uid"] for pod in pods(kube, namespace)}
    orders = Orders(service=NAME, bodies=[BODY | {"max_tokens": 1900}], clients=6, seconds=30)
    load = start_load(kube, "return-load", namespace, built_images["engine-demo"], orders)
    eventually(lambda: load.counts().done > 0, "the load has begun")
    scale(kube, namespace, 1)
    eventually(lambda: "Draining" in states(kube, namespace), "a pod drains")
    scale(kube, namespace, 2)
    eventually(lambda: states(kube, namespace) == ["Serving", "Serving"], "both serve again")
    counts = load.wait()
    load.remove()
    assert {pod["metadata"]["uid"] for pod in pods(kube, namespace)} == before
    assert (counts.failed, counts.cut, counts.errors) == (0, 0, ())


def pods(kube, namespace):
    return kube.list("pods", namespace, f"pagefleet.io/service={NAME}")

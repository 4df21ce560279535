"""A pool too small for its load: swaps, a lower cap, a queue, one replica more, and all the way back.

Told by `make demo-pressure` on the demo's cluster. Nothing of it is scripted: the load comes and goes, and the operator
does the rest. Intervals of the control loop are a fifth of the usual ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import e2e.cluster.api as local_cluster
from e2e import demo, images, tiny_model
from e2e.kube import Kube, KubeError
from e2e.load.pods import Counts, Orders, start_load
from e2e.progress import Say, step
from e2e.stories.diary import Diary
from e2e.watch import NotReadyInTime, wait_ready

NAME = "pressure"
PACE = "0.2"
BODY = {"model": NAME, "prompt": "x" * 200, "max_tokens": 400, "ignore_eos": True, "temperature": 1.0}
CLIENTS = 24
LOAD_S = 110.0


class StoryError(RuntimeError):
    """The story did not go as it should; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How the story went."""

    diary: Diary
    load: Counts


def service(image: str, namespace: str) -> dict[str, Any]:
    """A tiny model, a pool of one MiB, and every remedy on."""
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "model": {"uri": tiny_model.URI, "name": NAME},
            "engine": {
                "image": image,
                "maxNumSeqs": {"initial": 24, "min": 2, "max": 24},
                "kvCache": {"precision": "fp8_e4m3", "size": "1Mi", "swapSpace": "64Mi"},
                "maxModelLen": 1024,
            },
            "autoscaling": {
                "minReplicas": 1,
                "maxReplicas": 2,
                "targets": {"queuedRequestsPerReplica": 4},
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20}},
            },
            "drain": {"timeout": "60s"},
            "pod": {
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                **tiny_model.mounted(NAME),
            },
        },
    }


def begin(kube: Kube, image: str, namespace: str, say: Say) -> None:
    """Apply the service and wait until it serves."""
    tiny_model.put(kube, NAME, namespace)
    kube.apply(service(image, namespace))
    wait_ready(kube, NAME, say, namespace)


def tell(kube: Kube, image: str, namespace: str, say: Say, at_the_height: Callable[[], object] = lambda: None) -> Told:
    """The story. Raises `StoryError` when a part of it does not come in time."""
    diary = Diary(kube=kube, name=NAME, namespace=namespace)
    orders = Orders(service=NAME, bodies=[BODY], clients=CLIENTS, seconds=LOAD_S)
    load = start_load(kube, "pressure-load", namespace, image, orders)
    try:
        _expect(diary.watch(lambda status: status.get("readyReplicas") == 2, 150, say), "a second replica serves")
        at_the_height()
        diary.watch(lambda _: load.counts().ended, 180, say)
        counts = load.wait()
        say(f"the load has ended: {counts}")
        _expect(diary.watch(_is_back, 300, say), "one replica, and the cap that the spec starts with")
    finally:
        load.remove()
    return Told(diary=diary, load=counts)


def _is_back(status: dict[str, Any]) -> bool:
    pods = status.get("pods", [])
    return len(pods) == 1 and status.get("replicas") == 1 and status.get("tuning", {}).get("maxNumSeqs") == 24


def _expect(came: bool, what: str) -> None:
    if not came:
        raise StoryError(f"not seen in time: {what}")


def main() -> int:
    """Entry point of `make demo-pressure`."""
    argparse.ArgumentParser(prog="make demo-pressure", description=__doc__).parse_args()
    try:
        target = demo.use_local_cluster()
        with step("Install the operator with Helm, its control loop five times as fast as usual"):
            demo.install_operator(target.kube, target.operator_image, pace=PACE)
        with step("Apply a service with a pool of one MiB") as say:
            begin(target.kube, target.engine_image, demo.NAMESPACE, say)
        with step(f"{CLIENTS} clients for {LOAD_S:.0f} s, then quiet") as say:
            told = tell(target.kube, target.engine_image, demo.NAMESPACE, say)
    except (StoryError, KubeError, NotReadyInTime, local_cluster.ClusterError, images.ImageError) as error:
        print(f"make demo-pressure: {error}", file=sys.stderr)
        return 1
    print("\nWhat happened, and why:\n")
    for decision in told.diary.decisions:
        print(f"  {decision['time'][11:19]}  {decision['remedy']:5}  {decision['message']}")
    print(f"\n{told.load.done} requests answered, {told.load.failed} failed, {told.load.cut} streams cut.")
    print(f"kubectl delete llms {NAME} removes the service.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

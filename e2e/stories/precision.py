"""A route whose answers break in FP8 alone: found, compared, moved to BF16, and tried again once it is quiet.

Told by `make demo-precision` on the demo's cluster. The engine's FP8 frames are degraded on purpose, see `degraded`;
the same prompts pass in BF16. Nothing tells the operator of it but the engine's counts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import e2e.cluster.api as local_cluster
from e2e import demo, images
from e2e.kube import Kube, KubeError
from e2e.load.pods import Counts, Orders, start_load
from e2e.progress import Say, step
from e2e.stories import degraded, orders
from e2e.stories.diary import Diary
from e2e.stories.pressure import PACE, StoryError
from e2e.watch import NotReadyInTime, wait_ready

NAME = "precision"
ROUTE = "orders"
SERIES = re.compile(r"^pagefleet:structured_outputs_total\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How the story went."""

    diary: Diary
    loads: tuple[Counts, Counts]  # the hard requests, and the easy ones after them
    failing: dict[str, tuple[int, int]]  # precision -> (failed, answers) of the hard requests


def service(image: str, namespace: str) -> dict[str, Any]:
    """SmolLM2 with a route that is watched."""
    made = demo.example_service(image)
    made["metadata"] |= {"name": NAME, "namespace": namespace}
    made["spec"]["model"]["name"] = NAME
    made["spec"]["routes"] = [
        {
            "name": ROUTE,
            "model": ROUTE,
            "structured": "Validate",
            "kvPrecision": {
                "policy": "Auto",
                "controlShare": "0.1",
                "maxSchemaFailureRate": "0.20",
                "minSamples": 20,
                "windowRequests": 200,
                "returnAfter": "1m",
            },
        }
    ]
    made["spec"]["pod"] |= degraded.mounted(NAME)
    return made


def begin(kube: Kube, image: str, namespace: str, say: Say) -> None:
    """Apply the service and wait until it serves."""
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(degraded.config_map(NAME, namespace)))
    kube.apply(service(image, namespace))
    wait_ready(kube, NAME, say, namespace)


def tell(kube: Kube, image: str, namespace: str, say: Say, at_the_height: Callable[[], object] = lambda: None) -> Told:
    """The story. Raises `StoryError` when a part of it does not come in time."""
    diary = Diary(kube=kube, name=NAME, namespace=namespace)
    hard = _load("hard-requests", kube, image, namespace, orders.long_requests(ROUTE, 64))
    try:
        _until(diary, "Fallback", 420, say)
        failing = count_failing(diary)
        hard.stop()
        counts = hard.wait()
    finally:
        hard.remove()
    at_the_height()
    easy = _load("easy-requests", kube, image, namespace, orders.short_requests(ROUTE, 64))
    try:
        _until(diary, "Normal", 420, say)
        easy.stop()
        return Told(diary=diary, loads=(counts, easy.wait()), failing=failing)
    finally:
        easy.remove()


def count_failing(diary: Diary) -> dict[str, tuple[int, int]]:
    """Failed and all answers of the route by precision, over the serving pods, as the engines count them."""
    failed: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for pod in diary.look().get("pods", []):
        for found in SERIES.finditer(diary.metrics(pod["name"])):
            labels = dict(LABEL.findall(found[1]))
            if labels["route"] == ROUTE and labels["constrained"] == "false" and labels["precision"] != "mixed":
                number = int(float(found[2]))
                answers[labels["precision"]] += number
                failed[labels["precision"]] += number * (labels["outcome"] in ("invalid_json", "schema_violation"))
    return {precision: (failed[precision], answers[precision]) for precision in answers if answers[precision]}


def route_of(status: dict[str, Any]) -> dict[str, Any]:
    """The watched route's status."""
    return next((dict(route) for route in status.get("routes", []) if route["name"] == ROUTE), {})


def _load(name: str, kube: Kube, image: str, namespace: str, bodies: list[Any]) -> Any:
    sent = Orders(service=NAME, bodies=bodies, clients=8, seconds=600)
    return start_load(kube, name, namespace, image, sent)


def _until(diary: Diary, state: str, timeout_s: float, say: Say) -> None:
    def line(status: dict[str, Any]) -> str:
        route = route_of(status)
        rates = ", ".join(f"{name} {bad}/{all_}" for name, (bad, all_) in sorted(count_failing(diary).items()))
        state, precision = route.get("state", "-"), route.get("kvPrecision", "-")
        return f"route {ROUTE}: {state}, new requests in {precision}; failed: {rates}"

    came = diary.watch(lambda status: route_of(status).get("state") == state, timeout_s, say, line=line)
    if not came:
        raise StoryError(f"not seen in time: route {ROUTE} in state {state}")


def main() -> int:
    """Entry point of `make demo-precision`."""
    argparse.ArgumentParser(prog="make demo-precision", description=__doc__).parse_args()
    try:
        target = demo.use_local_cluster()
        with step("Install the operator with Helm, its control loop five times as fast as usual"):
            demo.install_operator(target.kube, target.operator_image, pace=PACE)
        with step("Apply a service whose FP8 frames are degraded on purpose") as say:
            begin(target.kube, target.engine_image, demo.NAMESPACE, say)
        with step("Requests that copy from sealed frames, then short ones that cannot be hurt") as say:
            told = tell(target.kube, target.engine_image, demo.NAMESPACE, say)
    except (StoryError, KubeError, NotReadyInTime, local_cluster.ClusterError, images.ImageError) as error:
        print(f"make demo-precision: {error}", file=sys.stderr)
        return 1
    print("\nThe same prompts, by the precision of their KV cache:\n")
    for precision, (failed, answers) in sorted(told.failing.items()):
        print(f"  {precision:8}  {failed} of {answers} answers missed their schema ({failed / answers:.0%})")
    print("\nWhat happened, and why:\n")
    for decision in told.diary.decisions:
        print(f"  {decision['time'][11:19]}  {decision['remedy']:9}  {decision['message']}")
    done, failed = (sum(getattr(load, name) for load in told.loads) for name in ("done", "failed"))
    print(f"\n{done} requests answered, {failed} failed.")
    print(f"kubectl delete llms {NAME} removes the service.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long it takes from the first swapped request to the lower cap, over several trials, each on a fresh service.

The operator's control loop has its usual pace here. Both moments are read from the engine's own metrics, a few times a
second, so a figure is exact to that. It fails when the median is above the target.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import e2e.cluster.api as local_cluster
from e2e import demo, images, tiny_model
from e2e.eventually import eventually
from e2e.kube import Kube, KubeError
from e2e.load.pods import Orders, start_load
from e2e.progress import Say, step
from e2e.stories import pressure
from e2e.stories.diary import Diary
from e2e.watch import NotReadyInTime, wait_ready

LOAD_S = 60.0
TARGET_S = 5.0


def trial(kube: Kube, image: str, namespace: str, number: int, say: Say) -> float:
    """Seconds from the first swap to the lower cap, on a service of its own that is removed afterwards."""
    name = f"reaction-{number}"
    manifest = pressure.service(image, namespace)
    manifest["metadata"]["name"] = name
    del manifest["spec"]["autoscaling"]
    tiny_model.put(kube, pressure.NAME, namespace)
    kube.apply(manifest)
    wait_ready(kube, name, say, namespace)
    diary = Diary(kube=kube, name=name, namespace=namespace)
    (pod,) = [found["name"] for found in diary.look()["pods"]]
    load = start_load(
        kube,
        f"{name}-load",
        namespace,
        image,
        Orders(service=name, bodies=[pressure.BODY], clients=pressure.CLIENTS, seconds=LOAD_S),
    )
    try:
        eventually(lambda: diary.numbers(pod).get("swapped", 0) > 0, "a request is swapped", 120, poll_s=0.05)
        began = time.monotonic()
        eventually(lambda: diary.numbers(pod).get("cap", 24) < 24, "the cap is lower", 60, poll_s=0.05)
        return time.monotonic() - began
    finally:
        load.remove()
        kube.kubectl("delete", "llms", name, "-n", namespace, "--wait=true")


def main() -> int:
    """Entry point of `make measure-reaction`."""
    parser = argparse.ArgumentParser(prog="make measure-reaction", description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    trials = parser.parse_args().trials
    if trials < 1:
        parser.error(f"--trials {trials}: use 1 or more")
    try:
        target = demo.use_local_cluster()
        with step("Install the operator with Helm"):
            demo.install_operator(target.kube, target.operator_image)
        times = []
        for number in range(trials):
            with step(f"Trial {number + 1} of {trials}") as say:
                times.append(trial(target.kube, target.engine_image, demo.NAMESPACE, number, say))
                say(f"{times[-1]:.1f} s")
    except (KubeError, NotReadyInTime, local_cluster.ClusterError, images.ImageError) as error:
        print(f"make measure-reaction: {error}", file=sys.stderr)
        return 1
    return report(times)


def report(times: Sequence[float]) -> int:
    """Print what was measured; the exit code is 1 when the median is above the target."""
    median = statistics.median(times)
    told = " ".join(f"{seconds:.1f}" for seconds in sorted(times))
    print(f"\nseconds from the first swap to the lower cap: {told}")
    print(f"median {median:.1f} s (target: {TARGET_S:.0f} s at most)")
    return 0 if median <= TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())

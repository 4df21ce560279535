"""`make demo`: from this machine to an answered chat request, on a local cluster or on one that `CONTEXT=` names."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import e2e.cluster.api as local_cluster
import e2e.images as images
from e2e.kube import Kube, KubeError
from e2e.progress import Say, step
from e2e.watch import NotReadyInTime, wait_ready

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "pagefleet"
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
RELEASE, SYSTEM_NAMESPACE, NAMESPACE = "pagefleet", "pagefleet-system", "default"
CRD = "llmservices.pagefleet.io"
QUESTION = "What is the capital of France? Answer in one word."
"""The model is sure of how to begin its answer; without the second sentence it is a toss-up that FP8 may decide."""


class DemoError(RuntimeError):
    """Something the demo needs is not there; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster that the demo runs on and the images it runs there."""

    kube: Kube
    operator_image: str
    engine_image: str
    environment_hint: str
    """What a person types first so that plain kubectl speaks to this cluster."""


def up(context: str | None, registry: str | None) -> None:
    """All of it; harmless to repeat. Raises `DemoError`, `KubeError` or `NotReadyInTime`."""
    if registry and not context:
        raise DemoError("REGISTRY= is for a cluster that CONTEXT= names; the local one loads its images by itself")
    began = time.monotonic()
    target = use_context(context, registry) if context else use_local_cluster()
    with step("Install the operator with Helm"):
        install_operator(target.kube, target.operator_image)
    service = example_service(target.engine_image)
    name = str(service["metadata"]["name"])
    with step(f"Apply {EXAMPLE.relative_to(ROOT)}") as say:
        target.kube.apply(service)
        try:
            wait_ready(target.kube, name, say)
        except NotReadyInTime:
            explain_not_ready(target.kube, say)
            raise
    with step(f"Ask through the Service: {QUESTION}"):
        answer = ask(target.kube, name, QUESTION)
    print(f"\n    {answer}\n")
    print(f"This took {time.monotonic() - began:.0f} s.")
    print(next_steps(name, target.environment_hint, context))


def use_local_cluster() -> Target:
    """Bring the local cluster up and put freshly built images into it."""
    with step("Check what this machine has, build what it lacks"):
        local_cluster.prepare_machine()
        tools = local_cluster.ensure_tools()
    with step("Start a Kubernetes cluster on this machine"):
        cluster = local_cluster.up()
    with step("Build the container images") as say:
        built = images.build(["operator", "engine-demo"], say=say)
    with step("Load the images into the cluster"):
        for image in built.values():
            cluster.load_image(image.archive, image.ref)
    return Target(
        kube=Kube(kubectl_path=tools.kubectl, helm_path=tools.helm, kubeconfig=cluster.kubeconfig),
        operator_image=built["operator"].ref,
        engine_image=built["engine-demo"].ref,
        environment_hint='eval "$(make -s cluster-env)"',
    )


def use_context(context: str, registry: str | None) -> Target:
    """Use the cluster behind a context of the user's kubeconfig, with images pushed to a registry it can pull from."""
    if not registry:
        raise DemoError(
            "CONTEXT= needs REGISTRY= too: a registry that this machine can push to and the cluster pull from"
        )
    with step("Check what this machine has, build what it lacks"):
        tools = local_cluster.ensure_client_tools()
    with step(f"Build the container images and push them to {registry}") as say:
        built = images.build(["operator", "engine-demo"], registry=registry, say=say)
    return Target(
        kube=Kube(kubectl_path=tools.kubectl, helm_path=tools.helm, context=context),
        operator_image=built["operator"].ref,
        engine_image=built["engine-demo"].ref,
        environment_hint=f"kubectl config use-context {context}",
    )


def install_operator(kube: Kube, image: str, pace: str = "1") -> None:
    """`helm upgrade --install`, waiting until the operator is ready. `pace` is a factor on the control loop's times."""
    repository, tag = image.rsplit(":", 1)
    kube.helm(
        *("upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM_NAMESPACE, "--create-namespace"),
        *(
            "--set-string",
            f"image.repository={repository},image.tag={tag}",
            "--set",
            f"controlLoop.pace={pace}",
            "--wait",
            "--timeout",
            "180s",
        ),
    )


def example_service(engine_image: str) -> dict[str, Any]:
    """The example with the image that was just built, in the demo's namespace whatever the context's own is."""
    service: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    service["metadata"]["namespace"] = NAMESPACE
    service["spec"]["engine"]["image"] = engine_image
    return service


def ask(kube: Kube, service: str, question: str, namespace: str = NAMESPACE) -> str:
    """One greedy chat request through the Service; the answer's text."""
    body = {"model": service, "messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0}
    answer = kube.post(service, "/v1/chat/completions", body, namespace)
    return str(answer["choices"][0]["message"]["content"])


def next_steps(name: str, environment_hint: str, context: str | None) -> str:
    """What to try next, and how to stop."""
    return f"""
Try next:
    {environment_hint}
    kubectl get llms -n {NAMESPACE}
    kubectl describe llms -n {NAMESPACE} {name}
    kubectl port-forward -n {NAMESPACE} svc/{name} 8000
    # in a second terminal:
    curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Name three rivers."}}], "stream": true}}'
    kubectl patch llms -n {NAMESPACE} {name} --type merge -p '{{"spec": {{"replicas": 2}}}}'
Stop:
    make demo-down{f" CONTEXT={context}" if context else ""}"""


def down(context: str | None) -> None:
    """Remove what `up` made: from a named context the release and the service, else the whole local cluster."""
    if not context:
        with step("Stop the local cluster"):
            local_cluster.down()
        return
    tools = local_cluster.ensure_client_tools()
    kube = Kube(kubectl_path=tools.kubectl, helm_path=tools.helm, context=context)
    with step(f"Remove the demo from {context}") as say:
        if kube.kubectl("get", "crd", CRD, "--ignore-not-found", "-o", "name").stdout:
            kube.kubectl("delete", "-n", NAMESPACE, "-f", str(EXAMPLE), "--ignore-not-found")
        kube.helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--ignore-not-found")
        say(f"the CRD stays: kubectl delete crd {CRD} removes it and every LLMService")


def explain_not_ready(kube: Kube, say: Say) -> None:
    """What a person would look at first when the service does not come up."""
    looks = (
        ("get", "llms,pods,events", "--all-namespaces"),
        ("logs", "-n", SYSTEM_NAMESPACE, "deploy/pagefleet-operator", "--tail=20"),
    )
    for words in looks:
        say(f"kubectl {' '.join(words)}\n{kube.kubectl(*words, check=False).stdout}")


def main() -> int:
    """Entry point of `python -m e2e.demo`."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("--context", help="a context of your kubeconfig; default: a local cluster")
    parser.add_argument("--registry", help="where to push the images for that context")
    chosen = parser.parse_args()
    try:
        if chosen.action == "up":
            up(chosen.context, chosen.registry)
        else:
            down(chosen.context)
    except (DemoError, KubeError, NotReadyInTime, local_cluster.ClusterError, images.ImageError) as error:
        print(f"make demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "make demo: interrupted; run it again to go on, or make demo-down to remove what it made", file=sys.stderr
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

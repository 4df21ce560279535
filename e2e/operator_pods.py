"""The operator's own pod, for tests that take it away."""

from __future__ import annotations

from e2e import demo
from e2e.eventually import eventually
from e2e.kube import Kube

SELECTOR = "app.kubernetes.io/name=pagefleet"


def kill_operator(kube: Kube) -> None:
    """End it at once, and wait for the next one."""
    (before,) = operator_pods(kube)
    kube.kubectl("delete", "pod", before, "-n", demo.SYSTEM_NAMESPACE, "--grace-period=0", "--force")
    eventually(lambda: operator_pods(kube) not in ([], [before]), "another operator pod")


def operator_pods(kube: Kube) -> list[str]:
    """Their names."""
    return [pod["metadata"]["name"] for pod in kube.list("pods", demo.SYSTEM_NAMESPACE, SELECTOR)]

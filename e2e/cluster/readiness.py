"""Wait, step by step, until a started cluster can take pods, and say what is waited for."""

from __future__ import annotations

import http.client
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.bootstrap import DNS_SERVICE_PATH, list_dns_objects
from e2e.cluster.errors import StartError
from e2e.cluster.layout import SANDBOX_IMAGE
from e2e.cluster.logs import read_tail
from e2e.cluster.oci import build_image
from e2e.cluster.running import Cluster

Say = Callable[[str], None]
TIMEOUT_S = 180.0
DNS_READY_ADDRESS = ("127.0.0.1", 8181)
DEFAULT_ACCOUNT_PATH = "/api/v1/namespaces/default/serviceaccounts/default"


def wait_until_usable(cluster: Cluster, say: Say) -> None:
    """Return when pods can be created and will run. Raises `StartError` with the end of the log that tells most."""
    began = time.monotonic()
    expected = sorted(node.name for node in cluster.layout.nodes)
    steps: list[tuple[str, str, Callable[[], bool]]] = [
        ("the API server", "kube-apiserver", lambda: cluster.client.get("/readyz") is not None),
        ("the container runtime", "containerd-node1", lambda: is_runtime_there(cluster)),
        ("the nodes", "kubelet-node1", lambda: sorted(cluster.client.list_ready_nodes()) == expected),
        ("service accounts", "kube-controller-manager", lambda: cluster.client.get(DEFAULT_ACCOUNT_PATH) is not None),
        ("cluster DNS", "coredns", lambda: is_dns_ready(cluster)),
    ]
    for what, log, is_done in steps:
        if not is_done():
            wait_for(cluster, what, log, is_done, began)
            say(f"[{time.monotonic() - began:4.1f} s] {what}: ready")
        if log == "kube-apiserver":
            create_dns_objects(cluster)
        if log == "containerd-node1":
            load_sandbox_image(cluster)


def wait_for(cluster: Cluster, what: str, log: str, is_done: Callable[[], bool], began: float) -> None:
    """Ask again until the answer is yes."""
    while not is_done():
        if not cluster.is_alive():
            tail = read_tail(cluster.layout.logs / "supervisor.log", 10)
            raise StartError(f"the cluster ended while it waited for {what}:\n{tail}")
        if time.monotonic() - began > TIMEOUT_S:
            path = cluster.layout.logs / f"{log}.log"
            tail = read_tail(path, 10)
            raise StartError(f"{what} did not come up within {TIMEOUT_S:.0f} s; the end of {path}:\n{tail}")
        time.sleep(0.1)


def is_runtime_there(cluster: Cluster) -> bool:
    """Whether every node's containerd answers."""
    answers = [cluster.ctr(node, "images", "ls", "--quiet", check=False) for node in cluster.layout.nodes]
    return all(answer.returncode == 0 for answer in answers)


def is_dns_ready(cluster: Cluster) -> bool:
    """Whether CoreDNS has read the Services."""
    with cluster.forward(*DNS_READY_ADDRESS) as relay:
        connection = http.client.HTTPConnection(*relay.address, timeout=2)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def load_sandbox_image(cluster: Cluster) -> None:
    """The image that every pod's sandbox runs, made here."""
    program = (cluster.programs / "pause").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "pause.tar"
        archive.write_bytes(build_image("pause", program, SANDBOX_IMAGE, platform.machine()))
        cluster.load_image(archive, SANDBOX_IMAGE)


def create_dns_objects(cluster: Cluster) -> None:
    """Make the Service of cluster DNS known, unless it is."""
    if cluster.client.get(DNS_SERVICE_PATH) is None:
        objects = {"apiVersion": "v1", "kind": "List", "items": list_dns_objects(cluster.layout.nodes[0])}
        argv = (str(cluster.programs / "kubectl"), "--kubeconfig", str(cluster.kubeconfig), "apply", "-f", "-")
        result = subprocess.run(argv, input=json.dumps(objects), capture_output=True, text=True, check=False)
        if result.returncode:
            raise StartError(f"could not create the Service of cluster DNS: {result.stderr.strip()}")

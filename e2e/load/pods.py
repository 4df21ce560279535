"""Starts the load generator in a pod, and reads what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.eventually import eventually
from e2e.kube import Kube

STOP = "/tmp/stop"
CLIENT = Path(__file__).with_name("client.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What to send. Bounded by `seconds`, and by `requests` where it is given."""

    service: str
    bodies: Sequence[Mapping[str, Any]]
    """Sent in turn, each as a stream."""
    clients: int
    seconds: float
    requests: int | None = None
    path: str = "/v1/completions"
    ramp_s: float = 0.0
    """Over which the clients begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the requests so far."""

    done: int = 0
    failed: int = 0
    """No answer, or another one than 200 and 429."""
    cut: int = 0
    """Streams that ended before their end."""
    refused: int = 0
    """429."""
    errors: tuple[str, ...] = ()
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A running generator."""

    kube: Kube
    name: str
    namespace: str

    def counts(self) -> Counts:
        """What it said last."""
        lines = self.kube.kubectl("logs", self.name, "-n", self.namespace, "--tail=1", check=False).stdout.splitlines()
        if not lines or not lines[-1].startswith("{"):
            return Counts()
        found = json.loads(lines[-1])
        return Counts(**{**found, "errors": tuple(found["errors"])})

    def wait(self, timeout_s: float = 600) -> Counts:
        """The final counts."""
        return eventually(self._ended, "the load ends", timeout_s, poll_s=1)

    def _ended(self) -> Counts | None:
        found = self.counts()
        return found if found.ended else None

    def stop(self) -> None:
        """Begin no further request; those that have begun are finished."""
        self.kube.kubectl("exec", self.name, "-n", self.namespace, "--", "touch", STOP)

    def remove(self) -> None:
        """Take the pod away."""
        self.kube.kubectl("delete", "pod", self.name, "-n", self.namespace, "--ignore-not-found", "--grace-period=1")


def start_load(kube: Kube, name: str, namespace: str, image: str, orders: Orders) -> Load:
    """Start it. The image needs a Python; the engine's has one."""
    load = Load(kube=kube, name=name, namespace=namespace)
    load.remove()
    kube.apply(_pod(name, namespace, image, orders))
    return load


def _pod(name: str, namespace: str, image: str, orders: Orders) -> dict[str, Any]:
    spoken = {
        "host": f"{orders.service}.{namespace}.svc",
        "port": 8000,
        "path": orders.path,
        "bodies": list(orders.bodies),
        "clients": orders.clients,
        "seconds": orders.seconds,
        "ramp_s": orders.ramp_s,
        "stop_file": STOP,
        **({} if orders.requests is None else {"requests": orders.requests}),
    }
    container = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", CLIENT.read_text()],
        "env": [{"name": "LOAD", "value": json.dumps(spoken)}],
        "resources": {"limits": {"memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"restartPolicy": "Never", "securityContext": security, "containers": [container]},
    }

"""The Service that clients use, and the headless one through which single pods are addressed."""

from __future__ import annotations

from typing import Final

from pagefleet_engine.contract.arguments import API_PORT
from pagefleet_operator import labels
from pagefleet_operator.manifests.ownership import Owner, child_metadata
from pagefleet_operator.resources import SERVICE, Object

PORT_NAME: Final = "http"


def build_service(owner: Owner) -> Object:
    """`<name>`: one address for the fleet's ready pods."""
    return _manifest(owner, owner.key.name, {"type": "ClusterIP"})


def build_headless_service(owner: Owner) -> Object:
    """`<name>-pods`: the addresses of the ready pods themselves."""
    return _manifest(owner, labels.headless_name(owner.key.name), {"type": "ClusterIP", "clusterIP": "None"})


def service_url(owner: Owner) -> str:
    """Where clients inside the cluster reach the fleet."""
    return f"http://{owner.key.name}.{owner.key.namespace}.svc:{API_PORT}"


def _manifest(owner: Owner, name: str, spec: Object) -> Object:
    ports = [{"name": PORT_NAME, "port": API_PORT, "targetPort": PORT_NAME, "protocol": "TCP"}]
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": child_metadata(owner, name),
        "spec": spec | {"selector": labels.pod_selector(owner.key.name), "ports": ports},
    }

"""Objects that the local cluster starts with: the Service of cluster DNS. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from e2e.cluster.layout import DNS_SERVICE_ADDRESS, Node

DNS_SERVICE_PATH = "/api/v1/namespaces/kube-system/services/kube-dns"


def list_dns_objects(node: Node) -> list[Mapping[str, Any]]:
    """CoreDNS runs as a process at the node's address, so its Service selects no pods."""
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**metadata, "labels": {"k8s-app": "kube-dns"}},
            "spec": {"clusterIP": DNS_SERVICE_ADDRESS, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": [node.address], "conditions": {"ready": True}}],
        },
    ]

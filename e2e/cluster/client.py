"""A few GET requests to the cluster's API server, for start-up and status. Everything else uses kubectl."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One API server and who asks it."""

    port: int
    """On the host's loopback."""
    pki: Path

    def get(self, path: str) -> str | None:
        """The body of a successful answer; None when there was none."""
        try:
            context = ssl.create_default_context(cafile=self.pki / "ca.crt")
            context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=REQUEST_TIMEOUT_S)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read().decode()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return None
        return body if response.status == http.client.OK else None

    def list_ready_nodes(self) -> list[str]:
        """Names of the nodes whose Ready condition is True."""
        body = self.get("/api/v1/nodes")
        return find_ready_nodes(json.loads(body)) if body else []


def find_ready_nodes(nodes: dict[str, Any]) -> list[str]:
    """Names from a NodeList."""
    return [node["metadata"]["name"] for node in nodes["items"] if is_ready(node)]


def is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

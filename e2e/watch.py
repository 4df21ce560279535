"""Waiting for an LLMService while showing what it waits for."""

from __future__ import annotations

import time
from typing import Any

from e2e.kube import Kube
from e2e.progress import Say

POLL_S = 0.5


class NotReadyInTime(RuntimeError):
    """The service was not Ready before the deadline; the message holds its conditions."""


def condition(service: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition of a service, or an empty one that says that there is none yet."""
    for found in service.get("status", {}).get("conditions", []):
        if found["type"] == kind:
            return dict(found)
    return {"type": kind, "status": "Unknown", "reason": "NoStatusYet", "message": "the operator has not seen it yet"}


def is_current(service: dict[str, Any]) -> bool:
    """Whether the status speaks of the spec as it is now."""
    return bool(service.get("status", {}).get("observedGeneration") == service["metadata"]["generation"])


def is_ready(service: dict[str, Any]) -> bool:
    """Ready, and of the current generation."""
    return is_current(service) and condition(service, "Ready")["status"] == "True"


def describe(service: dict[str, Any]) -> str:
    """One line: what the service waits for."""
    ready = condition(service, "Ready")
    return f"{ready['reason']}: {ready['message']}"


def wait_ready(kube: Kube, name: str, say: Say, namespace: str = "default", timeout_s: float = 300) -> dict[str, Any]:
    """Poll until the service is Ready, saying each change. Raises `NotReadyInTime`."""
    deadline, said = time.monotonic() + timeout_s, ""
    while True:
        service = kube.get("llmservice", name, namespace) or {"metadata": {"generation": 0}}
        line = describe(service)
        if line != said:
            say(line)
            said = line
        if is_ready(service):
            return service
        if time.monotonic() > deadline:
            raise NotReadyInTime(f"{namespace}/{name} is not Ready after {timeout_s:.0f} s: {line}")
        time.sleep(POLL_S)

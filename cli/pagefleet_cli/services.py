"""Where the commands get an LLMService from: kubectl, a file or the standard input.

kubectl and no client library: whoever has a cluster has it, with every kind of kubeconfig and login that it knows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pagefleet_cli.errors import CommandError
from pagefleet_operator.api.status import LLMServiceStatus, parse_status
from pagefleet_operator.api.v1alpha1 import GROUP, KIND, PLURAL

RESOURCE: Final = f"{PLURAL}.{GROUP}"
TIMEOUT_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where to look."""

    namespace: str | None = None  # None: that of the kubeconfig's context
    context: str | None = None  # None: the kubeconfig's current one
    file: Path | None = None  # instead of a cluster; `-` is the standard input
    all_namespaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An LLMService as far as the commands read it."""

    name: str
    namespace: str
    generation: int
    status: LLMServiceStatus


def find_service(source: Source, name: str | None) -> Service:
    """One service. Without a name there has to be exactly one. Raises `CommandError`."""
    found = find_services(source, name)
    if len(found) != 1:
        names = ", ".join(service.name for service in found) or "none"
        raise CommandError(f"give the NAME of one LLMService: there are {len(found)} ({names})")
    return found[0]


def find_services(source: Source, name: str | None = None) -> list[Service]:
    """All services of the source, or the one of that name. Raises `CommandError`."""
    text = _ask_kubectl(source, name) if source.file is None else _read(source.file)
    services = [_service(raw) for raw in _objects(text, str(source.file or "kubectl's answer"))]
    if source.file is None:
        return services
    chosen = [
        service
        for service in services
        if name in (None, service.name) and source.namespace in (None, service.namespace)
    ]
    if name is not None and not chosen:
        raise CommandError(f"{source.file}: no {KIND} named {name} in it")
    return chosen


def _ask_kubectl(source: Source, name: str | None) -> str:
    command = ["kubectl", "get", RESOURCE, *([name] if name else []), "--output=json"]
    command += [f"--namespace={source.namespace}"] if source.namespace else []
    command += [f"--context={source.context}"] if source.context else []
    command += ["--all-namespaces"] if source.all_namespaces else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise CommandError("kubectl is not on the PATH: install it, or give the object with --file") from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"the cluster has not answered for {TIMEOUT_S} s: check --context") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"kubectl ended with {done.returncode}"]
        raise CommandError(lines[-1])
    return done.stdout


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CommandError(f"--file {path}: {reason}") from error


def _objects(text: str, origin: str) -> Iterator[Mapping[str, Any]]:
    """Every LLMService in a document, a list, or several YAML documents."""
    try:
        documents = [json.loads(text)] if text.lstrip().startswith("{") else list(yaml.safe_load_all(text))
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{origin}: neither JSON nor YAML ({' '.join(str(error).split())})") from error
    found = [item for document in documents for item in _items(document)]
    if not found and not any(isinstance(document, dict) and "items" in document for document in documents):
        raise CommandError(f"{origin}: no {KIND} in it")
    yield from found


def _items(document: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, dict):
        return
    items = document.get("items")
    for item in items if isinstance(items, list) else [document]:
        if isinstance(item, dict) and item.get("kind") == KIND:
            yield item


def _service(raw: Mapping[str, Any]) -> Service:
    found = raw.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    status = raw.get("status")
    generation = metadata.get("generation")
    return Service(
        name=str(metadata.get("name", "unnamed")),
        namespace=str(metadata.get("namespace", "default")),
        generation=generation if isinstance(generation, int) else 0,
        status=parse_status(status if isinstance(status, dict) else None),
    )

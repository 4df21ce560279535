"""kubectl and helm against one named cluster, for the demo and the e2e tests. Which cluster it is, others know."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class KubeError(RuntimeError):
    """A kubectl or helm call that failed; the message is what the tool said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kube:
    """The command-line tools, bound to one kubeconfig and context."""

    kubectl_path: Path
    helm_path: Path
    kubeconfig: Path | None = None
    """None: the user's own configuration (KUBECONFIG or ~/.kube/config)."""
    context: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl. Raises `KubeError` with its standard error when `check` is set and it fails."""
        context = ("--context", self.context) if self.context else ()
        return self._run((str(self.kubectl_path), *context, *words), stdin, check)

    def helm(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm. Raises `KubeError` as `kubectl` does."""
        context = ("--kube-context", self.context) if self.context else ()
        return self._run((str(self.helm_path), *words, *context), None, check)

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """One object, or None when there is no such object."""
        found = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found").stdout
        return dict(json.loads(found)) if found.strip() else None

    def list(self, kind: str, namespace: str = "default", selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in a namespace that match a label selector."""
        found = self.kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json").stdout
        return list(json.loads(found)["items"])

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """`kubectl apply` of one object."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def post(self, service: str, path: str, body: Mapping[str, Any], namespace: str = "default") -> dict[str, Any]:
        """POST JSON to a Service's port `http` through the API server's proxy, which every cluster has."""
        url = f"/api/v1/namespaces/{namespace}/services/http:{service}:http/proxy{path}"
        return dict(json.loads(self.kubectl("create", "--raw", url, "-f", "-", stdin=json.dumps(body)).stdout))

    def _run(self, argv: tuple[str, ...], stdin: str | None, check: bool) -> subprocess.CompletedProcess[str]:
        environ = dict(self.environ)
        if self.kubeconfig:
            environ["KUBECONFIG"] = str(self.kubeconfig)
        result = subprocess.run(argv, input=stdin, text=True, capture_output=True, env=environ, check=False)
        if check and result.returncode:
            raise KubeError(result.stderr.strip() or f"{argv[0]} ended with code {result.returncode}")
        return result

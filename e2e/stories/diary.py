"""What happened to one service while a story ran: its decisions in order, and a line for people every few seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.kube import Kube
from e2e.progress import Say

NUMBERS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "swapped": "vllm:num_requests_swapped",
    "kv": "vllm:kv_cache_usage_perc",
    "cap": "pagefleet:max_num_active_seqs",
}


@dataclass(kw_only=True)
class Diary:
    """Look at it often: the status keeps the last ten decisions only."""

    kube: Kube
    name: str
    namespace: str
    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    """Oldest first."""
    ready: list[int] = field(default_factory=list)
    """Ready replicas at every look."""

    def look(self) -> dict[str, Any]:
        """The service's status now; what is new in it is noted."""
        service = self.kube.get("llmservice", self.name, self.namespace) or {}
        status: dict[str, Any] = service.get("status", {})
        for decision in reversed(status.get("decisions", [])):
            if decision not in self.decisions:
                self.decisions.append(decision)
        self.ready.append(status.get("readyReplicas", 0))
        return status

    def reasons(self) -> list[tuple[str, str]]:
        """Remedy and reason of every decision, each once, in the order of their first time."""
        return list(dict.fromkeys((decision["remedy"], decision["reason"]) for decision in self.decisions))

    def watch(
        self,
        until: Callable[[dict[str, Any]], bool],
        timeout_s: float,
        say: Say,
        line: Callable[[dict[str, Any]], str] | None = None,
        every_s: float = 2.0,
    ) -> bool:
        """Look and tell until something is true of the status; False when the time is over."""
        end, told = time.monotonic() + timeout_s, len(self.decisions)
        while True:
            status = self.look()
            for decision in self.decisions[told:]:
                say(f"  {decision['remedy']}, {decision['reason']}: {decision['message']}")
            told = len(self.decisions)
            say((line or self.line)(status))
            if until(status):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(every_s)

    def line(self, status: Mapping[str, Any]) -> str:
        """Replicas, and each engine's numbers as it reports them."""
        engines = [
            self.engine(pod["name"]) for pod in status.get("pods", []) if pod["state"] in ("Serving", "Draining")
        ]
        return f"replicas {status.get('replicasSummary', '-'):>4}   " + "   ".join(engines)

    def engine(self, pod: str) -> str:
        """One engine in a few words."""
        found = self.numbers(pod)
        words = (f"{name} {value:.0f}" for name, value in found.items() if name != "kv")
        return f"[{' '.join(words)} kv {found['kv']:.0%}]" if found else "no answer"

    def numbers(self, pod: str) -> dict[str, float]:
        """What one engine reports of `NUMBERS`; empty when it does not answer."""
        text = self.metrics(pod)
        found = {name: _value(text, metric) for name, metric in NUMBERS.items()}
        return {name: value for name, value in found.items() if value is not None} if None not in found.values() else {}

    def metrics(self, pod: str) -> str:
        """All that one engine reports; empty when it does not answer."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/http:{pod}:8000/proxy/metrics"
        return self.kube.kubectl("get", "--raw", path, check=False).stdout


def _value(text: str, metric: str) -> float | None:
    found = re.search(rf"^{re.escape(metric)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])

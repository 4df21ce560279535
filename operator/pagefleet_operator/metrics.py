"""The operator's own metrics, in one place. Labels are from small fixed sets: never an object's name."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

DURATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class OperatorMetrics:
    """All metrics, registered on the given registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconciles = Counter(
            "pagefleet_operator_reconciles", "Reconciles by how they ended.", ["result"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "pagefleet_operator_reconcile_seconds",
            "Time of one reconcile.",
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.steps = Counter(
            "pagefleet_operator_plan_steps", "Steps carried out, by what they do.", ["step"], registry=registry
        )
        self.api_errors = Counter(
            "pagefleet_operator_api_errors",
            "Calls to the API server that failed; status none: no answer.",
            ["method", "status"],
            registry=registry,
        )
        self.queue_depth = Gauge(
            "pagefleet_operator_queue_depth", "Objects that wait to be reconciled.", registry=registry
        )
        self.active = Gauge("pagefleet_operator_active", "1 while this process holds the lease.", registry=registry)
        self.watch_restarts = Counter(
            "pagefleet_operator_watch_restarts", "Times the watches ended.", registry=registry
        )
        self._add_remedies(registry)
        info = Gauge(
            "pagefleet_operator_build_info", "Always 1; the label is the version.", ["version"], registry=registry
        )
        info.labels(version=version("pagefleet")).set(1)

    def _add_remedies(self, registry: CollectorRegistry) -> None:
        """What concerns the engines and the control loop."""
        self.alerts = Counter(
            "pagefleet_operator_alert_notifications",
            "Notifications of Alertmanager's, by what became of them.",
            ["result"],
            registry=registry,
        )
        self.scrapes = Counter(
            "pagefleet_operator_engine_scrapes", "Looks at an engine's metrics.", ["result"], registry=registry
        )
        self.changes = Counter(
            "pagefleet_operator_engine_changes", "Changes asked of engines.", ["result"], registry=registry
        )
        self.drifts = Counter(
            "pagefleet_operator_engine_drifts",
            "Times an engine was found with another configuration than it was set to.",
            registry=registry,
        )
        self.decisions = Counter(
            "pagefleet_operator_decisions",
            "Decisions, by remedy and reason; advisory ones were only recorded.",
            ["remedy", "reason", "advisory"],
            registry=registry,
        )
        self.holds = Gauge(
            "pagefleet_operator_holds",
            "Services for which a remedy does nothing for this reason now.",
            ["remedy", "reason"],
            registry=registry,
        )
        self.signing_keys = Gauge(
            "pagefleet_operator_signing_keys",
            "Keys that engines are given; 0: engines are scraped, but nothing is asked of them.",
            registry=registry,
        )
        self.signing_key_errors = Counter(
            "pagefleet_operator_signing_key_errors",
            "Looks at the Secret with the signing keys that failed.",
            ["problem"],
            registry=registry,
        )

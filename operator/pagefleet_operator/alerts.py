"""What Alertmanager says, as hints: which services to look at now, and which of them a replica more was asked for.

A hint never decides: the loop that takes it knows the bounds. Repeats of an alert that is still firing count once,
resolved alerts are ignored, and a service gets at most one hint per `HINT_EVERY_S`. The format is version 4 of
Alertmanager's webhook.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pagefleet_operator.labels import Key

MAX_ALERTS: Final = 1_000
MAX_REMEMBERED: Final = 10_000
REMEMBERED_S: Final = 24 * 3600.0
HINT_EVERY_S: Final = 60.0
MAX_NAME: Final = 128

SERVICE_LABELS: Final = ("llmservice", "pagefleet_io_service")
"""Labels that may name the service: an alert rule's own, or the pod label as Prometheus' labelmap spells it."""
REMEDY_LABEL: Final = "pagefleet_remedy"
SCALE: Final = "scale"


class AlertError(ValueError):
    """The body is no notification of Alertmanager's; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One firing alert about one service."""

    name: str
    service: Key
    identity: str  # of this firing; a repeat has the same
    wants_replica: bool


def parse_notification(body: bytes) -> list[Alert]:
    """The firing alerts that name a service. Raises `AlertError`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise AlertError("the body is not JSON") from None
    alerts = document.get("alerts") if isinstance(document, dict) else None
    if not isinstance(alerts, list):
        raise AlertError("alerts: must be a list, as in version 4 of Alertmanager's webhook")
    if len(alerts) > MAX_ALERTS:
        raise AlertError(f"alerts: {len(alerts)} entries; at most {MAX_ALERTS} are read")
    found = (_parse_alert(item, f"alerts[{position}]") for position, item in enumerate(alerts))
    return [alert for alert in found if alert is not None]


def _parse_alert(item: Any, where: str) -> Alert | None:
    labels = item.get("labels") if isinstance(item, dict) else None
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise AlertError(f"{where}.labels: must be an object of strings")
    name, namespace = labels.get("alertname", ""), labels.get("namespace", "")
    service = next((labels[label] for label in SERVICE_LABELS if labels.get(label)), "")
    if item.get("status") != "firing" or not (name and namespace and service):
        return None
    identity = f"{item.get('fingerprint') or sorted(labels.items())} {item.get('startsAt')}"
    return Alert(
        name=name[:MAX_NAME],
        service=Key(namespace, service),
        identity=identity[:1024],
        wants_replica=labels.get(REMEDY_LABEL) == SCALE,
    )


@dataclass(slots=True)
class AlertBook:
    """Which alerts were heard, and which hints nobody has taken yet. Bounded in every direction."""

    _heard: OrderedDict[str, float] = field(default_factory=OrderedDict)  # identity -> when
    _hinted: dict[Key, float] = field(default_factory=dict)  # service -> when it got its last hint
    _replicas: dict[Key, str] = field(default_factory=dict)  # service -> the alert that asks for one more

    def hear(self, alert: Alert, known: Mapping[Key, object], now_s: float) -> bool:
        """Whether this is news about a service that there is, so that it should be looked at now."""
        self._forget(now_s)
        if alert.service not in known or alert.identity in self._heard:
            return False
        self._heard[alert.identity] = now_s
        if now_s - self._hinted.get(alert.service, -HINT_EVERY_S) < HINT_EVERY_S:
            return False
        self._hinted[alert.service] = now_s
        if alert.wants_replica:
            self._replicas[alert.service] = alert.name
        return True

    def take(self, service: Key) -> str | None:
        """The name of the alert that asks for one replica more, once."""
        return self._replicas.pop(service, None)

    def _forget(self, now_s: float) -> None:
        while self._heard:
            first, heard_s = next(iter(self._heard.items()))
            if len(self._heard) < MAX_REMEMBERED and now_s - heard_s < REMEMBERED_S:
                break
            del self._heard[first]
        for service in [key for key, at_s in self._hinted.items() if now_s - at_s >= HINT_EVERY_S]:
            del self._hinted[service]

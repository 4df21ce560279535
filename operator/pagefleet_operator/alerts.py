"""What Alertmanager says, as hints: which services to look at now, and which of them a replica more was asked for.

A hint never decides: the loop that takes it knows the bounds. Repeats of an alert that is still firing count once, and
a service is looked at sooner at most once per `HINT_EVERY_S`. A wish for a replica stands until a step was made for it,
the alert is resolved, or `WISH_S` have gone by; only then is its alert remembered. The format is version 4 of
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
WISH_S: Final = 900.0
"""How long a wish stands unless its alert comes again: longer than a starting pod counts as capacity on its way."""
MAX_WISHERS: Final = 100
"""Alerts that are remembered to ask for the same replica."""
MAX_NAME: Final = 128

SERVICE_LABELS: Final = ("llmservice", "pagefleet_io_service")
"""Labels that may name the service: an alert rule's own, or the pod label as Prometheus' labelmap spells it."""
REMEDY_LABEL: Final = "pagefleet_remedy"
SCALE: Final = "scale"


class AlertError(ValueError):
    """The body is no notification of Alertmanager's; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert about one service."""

    name: str
    service: Key
    identity: str  # of this firing; a repeat has the same
    wants_replica: bool
    firing: bool = True


def parse_notification(body: bytes) -> list[Alert]:
    """The alerts that name a service, firing or resolved. Raises `AlertError`."""
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
    if item.get("status") not in ("firing", "resolved") or not (name and namespace and service):
        return None
    identity = f"{item.get('fingerprint') or sorted(labels.items())} {item.get('startsAt')}"
    return Alert(
        name=name[:MAX_NAME],
        service=Key(namespace, service),
        identity=identity[:1024],
        wants_replica=labels.get(REMEDY_LABEL) == SCALE,
        firing=item["status"] == "firing",
    )


@dataclass(slots=True)
class AlertBook:
    """Which alerts were heard, and which wishes nobody has fulfilled yet. Bounded in every direction."""

    _heard: OrderedDict[str, float] = field(default_factory=OrderedDict)  # identity -> when
    _hinted: dict[Key, float] = field(default_factory=dict)  # service -> when it got its last hint
    _wishes: dict[Key, dict[str, tuple[str, float]]] = field(default_factory=dict)  # service -> identity -> name, when

    def hear(self, alert: Alert, known: Mapping[Key, object], now_s: float) -> bool:
        """Whether this is news about a service that there is, so that it should be looked at now."""
        self._forget(now_s)
        if not alert.firing:
            self._wishes.get(alert.service, {}).pop(alert.identity, None)
            return False
        if alert.service not in known or alert.identity in self._heard:
            return False
        if alert.wants_replica:
            self._wish(alert, now_s)
        if now_s - self._hinted.get(alert.service, -HINT_EVERY_S) < HINT_EVERY_S:
            return False
        self._hinted[alert.service] = now_s
        if not alert.wants_replica:
            self._heard[alert.identity] = now_s
        return True

    def wish(self, service: Key, now_s: float) -> str | None:
        """The name of the alert that asks for one replica more, for as long as it does."""
        self._forget(now_s)
        return next((name for name, _ in self._wishes.get(service, {}).values()), None)

    def fulfil(self, service: Key, now_s: float) -> None:
        """A step was made for the wish: whoever asked for it has been heard."""
        for identity in self._wishes.pop(service, {}):
            self._heard[identity] = now_s

    def _wish(self, alert: Alert, now_s: float) -> None:
        wishers = self._wishes.setdefault(alert.service, {})
        if alert.identity in wishers or len(wishers) < MAX_WISHERS:
            wishers[alert.identity] = alert.name, now_s

    def _forget(self, now_s: float) -> None:
        while self._heard:
            first, heard_s = next(iter(self._heard.items()))
            if len(self._heard) < MAX_REMEMBERED and now_s - heard_s < REMEMBERED_S:
                break
            del self._heard[first]
        for service in [key for key, at_s in self._hinted.items() if now_s - at_s >= HINT_EVERY_S]:
            del self._hinted[service]
        for service, wishers in list(self._wishes.items()):
            standing = {identity: wish for identity, wish in wishers.items() if now_s - wish[1] < WISH_S}
            if standing:
                self._wishes[service] = standing
            else:
                del self._wishes[service]

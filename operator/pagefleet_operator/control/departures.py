"""How long each pod has been on its way out, on this process's own clock.

The mark's time was written with the wall clock of whoever was the operator then. Clocks jump, and differ from machine
to machine, and an hour too many would cut running streams; so only what this process saw itself counts. A restart of
the operator lets a drain begin to count anew: each one prolongs it by the timeout at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pagefleet_operator.labels import LEAVING, Key
from pagefleet_operator.leaving import Waited
from pagefleet_operator.pods import PodObservation, observe_pod
from pagefleet_operator.resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    marked_s: float
    closed_s: float | None = None


@dataclass(slots=True)
class Departures:
    """The marked pods of every service, by uid."""

    monotonic: Callable[[], float]
    _seen: dict[Key, dict[str, _Seen]] = field(default_factory=dict)

    def look_at(self, key: Key, pods: Iterable[Object]) -> Mapping[str, Waited]:
        """Of a service's pods as they are now; whoever has lost its mark is forgotten."""
        marked = [observe_pod(raw) for raw in pods if LEAVING in raw["metadata"].get("annotations", {})]
        now_s, before = self.monotonic(), self._seen.get(key, {})
        seen = {pod.uid: _look(pod, before.get(pod.uid), now_s) for pod in marked}
        if seen:
            self._seen[key] = seen
        else:
            self.forget(key)
        return {uid: _waited(each, now_s) for uid, each in seen.items()}

    def forget(self, key: Key) -> None:
        """The service is gone, or none of its pods leaves."""
        self._seen.pop(key, None)


def _look(pod: PodObservation, before: _Seen | None, now_s: float) -> _Seen:
    seen = before or _Seen(marked_s=now_s)
    if pod.gate is True:
        return replace(seen, closed_s=None)
    return replace(seen, closed_s=now_s if seen.closed_s is None else seen.closed_s)


def _waited(seen: _Seen, now_s: float) -> Waited:
    closed = None if seen.closed_s is None else timedelta(seconds=now_s - seen.closed_s)
    return Waited(marked=timedelta(seconds=now_s - seen.marked_s), closed=closed)

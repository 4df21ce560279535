"""Status to sentences: what the operator decided, what is not as it should be, and what the next remedy waits for.

Pure: the time is an argument, and nothing is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pagefleet_operator.api.conditions import Condition, ConditionStatus, ConditionType, Reason
from pagefleet_operator.api.status import Decision, LLMServiceStatus, Remedy, RouteState

REMEDIES: Final[Mapping[Remedy, str]] = {
    Remedy.TUNE: "tuned",
    Remedy.SCALE: "scaled",
    Remedy.PRECISION: "moved the precision",
    Remedy.HOLD: "held",
}
_BAD_WHEN_TRUE: Final = (
    ConditionType.PROGRESSING,
    ConditionType.SCALING_LIMITED,
    ConditionType.PRECISION_FALLBACK,
    ConditionType.DRAINING,
    ConditionType.DEGRADED,
)
"""Conditions that say something is going on; all others are meant to hold."""
_AT_REST: Final = (Reason.AS_EXPECTED, Reason.SETTLED, Reason.NOT_CONFIGURED)
"""Reasons of a False that is as it should be; others, such as a deadline that has passed, are not."""
_ROUTES: Final[Mapping[RouteState, str]] = {
    RouteState.NORMAL: "as the spec says",
    RouteState.TESTING: "both precisions are being compared",
    RouteState.FALLBACK: "in its fallback precision",
    RouteState.PROBING: "in its fallback precision, the other one is tried with few requests",
    RouteState.LATCHED: "in its fallback precision until a person resets it",
}


def decision_sentence(decision: Decision) -> str:
    """What was done to what, why, and with which numbers."""
    about = f" {decision.subject}" if decision.subject else ""
    verb = "would have " + REMEDIES[decision.remedy] if decision.advisory else REMEDIES[decision.remedy]
    change = f" from {decision.from_} to {decision.to}" if decision.from_ != decision.to else f" at {decision.to}"
    return f"{verb}{about}{change} ({decision.reason}): {_ended(decision.message)}"


def measurements(decision: Decision) -> str:
    """Its numbers, `name value, name value`; empty when it has none."""
    return ", ".join(f"{_spaced(name)} {value}" for name, value in decision.measurements.items())


def troubles(conditions: Iterable[Condition]) -> Iterator[Condition]:
    """The conditions that are not as they should be, in their order; Unknown ones are among them."""
    for condition in conditions:
        holds = condition.status is ConditionStatus.TRUE and condition.type not in _BAD_WHEN_TRUE
        at_rest = condition.status is ConditionStatus.FALSE and condition.reason in _AT_REST
        if not (holds or at_rest):
            yield condition


def condition_sentence(condition: Condition, now: datetime) -> str:
    """`Ready is False (NoReplicasReady) for 3 min: No pod serves yet.`"""
    lasted = age(condition.last_transition_time, now)
    message = f": {_ended(condition.message)}" if condition.message else "."
    return f"{condition.type} is {condition.status} ({condition.reason}) for {lasted}{message}"


def route_sentences(status: LLMServiceStatus, now: datetime) -> list[str]:
    """One sentence per route: its precision, its state and its counts."""
    return [
        f"{route.name}: {route.kv_precision or 'precision unknown'}, {route.state} ({_ROUTES[route.state]})"
        + (f", {route.reason}" if route.reason else "")
        + (f", for {age(route.since, now)}" if route.since else "")
        + (f"; {route.schema_failures or 0} of {route.samples} answers miss their schema" if route.samples else "")
        + "."
        for route in status.routes
    ]


def load_sentence(status: LLMServiceStatus) -> str:
    """Replicas, cap, KV use and requests, as far as they are known."""
    tuning, cache, load = status.tuning, status.kv_cache, status.load
    parts = [f"{status.replicas_summary} replicas serve" if status.replicas_summary else None]
    if tuning is not None and tuning.max_num_seqs is not None:
        parts.append(f"cap {tuning.max_num_seqs}" + (f" of {tuning.capacity}" if tuning.capacity else ""))
    if cache is not None and cache.usage is not None:
        parts.append(f"KV pool {percent(cache.usage)} in use" + (f" ({cache.precision})" if cache.precision else ""))
    if load is not None:
        counts = (("running", load.running), ("waiting", load.waiting), ("swapped", load.swapped))
        parts += [f"{number} {name}" for name, number in counts if number is not None]
    return (", ".join(part for part in parts if part) or "nothing is known yet") + "."


def percent(ratio: str) -> str:
    """A share as status keeps it, 0.35, as people read it; what is no number stays as it is."""
    try:
        return f"{float(ratio):.0%}"
    except ValueError:
        return ratio


def age(then: datetime, now: datetime) -> str:
    """How long ago, in the largest unit that fits: 45 s, 12 min, 3 h, 5 d."""
    passed = max(now - then, timedelta(0))
    for unit, size in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))):
        if passed >= size:
            return f"{passed // size} {unit}"
    return f"{int(passed.total_seconds())} s"


def clock(time: datetime) -> str:
    """A time as it is printed, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _ended(message: str) -> str:
    return message if message.endswith((".", "!", "?", "…")) else message + "."


def _spaced(name: str) -> str:
    """`timeToFirstToken` as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()

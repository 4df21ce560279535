"""The sentences: decisions with their numbers, what the condition says, and what would have to happen next."""

from __future__ import annotations

from typing import Final

from pagefleet_operator.api.conditions import ConditionStatus, Reason
from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import RouteState
from pagefleet_operator.remedies.coarse import about
from pagefleet_operator.remedies.precision.limits import Limits, rest_after
from pagefleet_operator.remedies.precision.look import Fact, Look, NotEnough
from pagefleet_operator.remedies.precision.memory import Cause, Memory

RESET_ANNOTATION: Final = "pagefleet.io/reset-precision"
WHY: Final = {
    Cause.NEW: "why it is where it is was not recorded",
    Cause.WATCHED: "nothing has happened to it",
    Cause.RATE_ABOVE_BOUND: "more than {bound} of the answers in {engine} miss their schema",
    Cause.DIFFERENCE_CONFIRMED: "{engine} fails more often than {fallback}, and not by chance",
    Cause.INSUFFICIENT_CAPACITY: "{engine} fails more often than {fallback}, but {room}; it keeps {engine} until then",
    Cause.CONCLUSION_EXPIRED: "there was no room for {fallback} for {held_answers} answers: whether {engine} fails "
    "more often is found out anew",
    Cause.NO_DIFFERENCE: "{engine} and {fallback} fail alike: the requests are harder, the precision is not worse",
    Cause.TEST_INCONCLUSIVE: "the comparison of {engine} with {fallback} reached its limit without a difference",
    Cause.KNOWN_FAMILY: "the model's family is known to be damaged by an FP8 KV cache: {damage}",
    Cause.QUIET_PERIOD_OVER: "{fallback} has been in force for {return_after}, and {engine} is tried with few requests",
    Cause.PROBE_CLEAN: "the probes in {engine} were clean",
    Cause.PROBE_FAILED: "the probes in {engine} failed more often than {fallback}",
    Cause.PROBE_INCONCLUSIVE: "the probes in {engine} reached their limit without a conclusion",
    Cause.RESET: "a person reset the route",
}
NEXT: Final = {
    RouteState.NORMAL: "Once more than {bound} of its answers in {engine} miss their schema, half of the requests run "
    "in {fallback} to compare.",
    RouteState.TESTING: "It moves to {fallback} if {engine} is found worse, and ends the comparison after "
    "{test_answers} answers at the latest.",
    RouteState.FALLBACK: "{engine} is tried again with few requests {return_after} after the move.",
    RouteState.PROBING: "It returns to {engine} if the probes are clean, and stays in {fallback} if they are not.",
    RouteState.LATCHED: "It stays in {fallback} until a person sets the annotation {reset} to the route's name "
    "and a new text, such as '{route} 1'.",
}
REASONS: Final = {
    RouteState.FALLBACK: Reason.DIFFERENCE_CONFIRMED,
    RouteState.PROBING: Reason.PRECISION_PROBING,
    RouteState.LATCHED: Reason.PRECISION_LATCHED,
}


def say_why(memory: Memory, look: Look) -> str:
    """Why the route is in its state, as a sentence about the route."""
    reason = _fill(WHY[memory.cause], look)
    latched = " It happened too often within 24 hours, so the route is latched." if _is_latched(memory) else ""
    return f"Route {look.route}: {reason}.{latched}"


def state_fact(memory: Memory, look: Look) -> Fact:
    """What the route says about the condition PrecisionFallback; several routes are put together by the caller."""
    if look.policy is Mode.OFF:
        return _not(Reason.NOT_CONFIGURED, f"Route {look.route} has no precision policy.")
    if look.spec.fallback is look.engine:
        return _not(Reason.NOT_CONFIGURED, f"Route {look.route} runs in its fallback precision anyway.")
    if look.policy is Mode.ADVISORY:
        return _not(Reason.AS_EXPECTED, f"Route {look.route} is in {look.engine}; the policy is Advisory.")
    if memory.cause is Cause.INSUFFICIENT_CAPACITY:
        message = say_why(memory, look)
        return Fact(status=ConditionStatus.UNKNOWN, reason=Reason.INSUFFICIENT_CAPACITY, message=message)
    if memory.state in REASONS:
        known = memory.cause is Cause.KNOWN_FAMILY
        reason = Reason.KNOWN_FAMILY if known else REASONS[memory.state]
        return Fact(status=ConditionStatus.TRUE, reason=reason, message=say_why(memory, look))
    return _not(Reason.AS_EXPECTED, f"Route {look.route} is in {look.engine}.")


def say_what_next(memory: Memory, look: Look, limits: Limits) -> str:
    """What would have to happen for the next change."""
    if look.policy is Mode.OFF:
        return "Nothing changes while kvPrecision.policy is Off."
    if look.spec.fallback is look.engine:
        return f"Nothing changes: the engine runs in {look.engine}, which is the fallback."
    if look.policy is Mode.ADVISORY and memory.state not in (RouteState.NORMAL, RouteState.TESTING):
        return f"Nothing changes while kvPrecision.policy is Advisory; under Auto it goes on as {memory.state}."
    if memory.cause is Cause.INSUFFICIENT_CAPACITY:
        return _fill("It moves to {fallback} as soon as there is room: add a replica or lower the cap.", look)
    if memory.state is RouteState.FALLBACK and memory.cause is Cause.KNOWN_FAMILY:
        return _fill("{engine} is tried only after a person sets the annotation {reset}, such as to '{route} 1'.", look)
    if memory.state is RouteState.NORMAL and memory.since_test is not None:
        left = rest_after(memory.tests) - memory.since_test
        if left > 0:
            return f"It is not tested again for {about(left)} more answers."
    return _fill(NEXT[memory.state], look).replace("{test_answers}", str(limits.test_answers))


def _fill(text: str, look: Look) -> str:
    room, family = look.room, look.family
    words = {
        "{route}": look.route,
        "{engine}": str(look.engine),
        "{fallback}": str(look.spec.fallback),
        "{bound}": look.spec.max_schema_failure_rate,
        "{return_after}": look.spec.return_after,
        "{reset}": RESET_ANNOTATION,
        "{held_answers}": str(Limits.of(look.spec).held_answers),
        "{damage}": f"{family.damage} ({family.source})" if family else "see docs/precision-remedy.md",
        "{room}": f"that takes {room.needed_share:.0%} of the pool and {room.allowed_share:.0%} are allowed"
        if isinstance(room, NotEnough)
        else "there was no room",
    }
    for key, value in words.items():
        text = text.replace(key, value)
    return text


def _is_latched(memory: Memory) -> bool:
    return memory.state is RouteState.LATCHED


def _not(reason: Reason, message: str) -> Fact:
    return Fact(status=ConditionStatus.FALSE, reason=reason, message=message)

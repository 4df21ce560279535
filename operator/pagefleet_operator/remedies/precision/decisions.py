"""The decisions to record: one for each change of state or cause, with what it was based on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import Decision, Remedy, RouteState
from pagefleet_operator.remedies.precision.counts import Arms
from pagefleet_operator.remedies.precision.limits import TEST_SHARE
from pagefleet_operator.remedies.precision.look import Look, Wanted
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment
from pagefleet_operator.remedies.precision.words import RESET_ANNOTATION, say_why

SILENT: Final = (Cause.NEW, Cause.WATCHED)
TO_FALLBACK: Final = (Cause.DIFFERENCE_CONFIRMED, Cause.KNOWN_FAMILY)
UNKNOWN_ROUTE: Final = "UnknownRoute"
NO_ROUTE: Final = "no route"
MOST_EVIDENCE: Final = 1e9


def record(before: Memory, after: Memory, look: Look, *, was: Wanted, wanted: Wanted) -> tuple[Decision, ...]:
    """The decision of one look: none while nothing has changed."""
    same = (before.state, before.cause) == (after.state, after.cause)
    if same or after.cause in SILENT:
        return ()
    advisory = look.policy is Mode.ADVISORY
    held = after.cause is Cause.INSUFFICIENT_CAPACITY
    target = _would_be(after.cause, wanted) if advisory else wanted
    return (
        Decision.model_validate(
            {
                "time": look.now.wall,
                "remedy": Remedy.HOLD if held else Remedy.PRECISION,
                "subject": look.route,
                "from": _text(was),
                "to": _text(target),
                "reason": str(after.cause),
                "message": say_why(after, look) + (" Not done: the policy is Advisory." if advisory else ""),
                "advisory": advisory,
                "measurements": _measurements(after),
            }
        ),
    )


def record_reset(before: Memory, route: str, now: Moment) -> Decision:
    """That a person reset the route."""
    return Decision.model_validate(
        {
            "time": now.wall,
            "remedy": Remedy.PRECISION,
            "subject": route,
            "from": str(before.state),
            "to": str(RouteState.NORMAL),
            "reason": str(Cause.RESET),
            "message": f"Route {route}: a person reset it; {len(before.flaps)} flaps are forgotten.",
        }
    )


def record_unknown_route(route: str, names: Sequence[str], now: Moment) -> Decision:
    """That the annotation of a person names none of the routes."""
    known = f"use one of {', '.join(names)}" if names else "the service has none"
    return Decision.model_validate(
        {
            "time": now.wall,
            "remedy": Remedy.HOLD,
            "subject": route,
            "from": NO_ROUTE,
            "to": NO_ROUTE,
            "reason": UNKNOWN_ROUTE,
            "message": f"{RESET_ANNOTATION} names the route {route!r}, which is not there: {known}.",
        }
    )


def _would_be(cause: Cause, wanted: Wanted) -> Wanted:
    """What Auto would have asked for."""
    to_fallback = cause in TO_FALLBACK
    share = 0.0 if to_fallback else TEST_SHARE if cause is Cause.RATE_ABOVE_BOUND else wanted.control_share
    return Wanted(
        precision=wanted.control_precision if to_fallback else wanted.precision,
        control_precision=wanted.control_precision,
        control_share=share,
        allow_demotion=wanted.allow_demotion and not to_fallback,
    )


def _text(wanted: Wanted) -> str:
    if wanted.control_share == 0:
        return str(wanted.precision)
    return f"{wanted.precision}, {wanted.control_share:.0%} {wanted.control_precision}"


def _measurements(after: Memory) -> dict[str, str]:
    if after.cause is Cause.RATE_ABOVE_BOUND:
        return _counts(after.window.total)
    if after.cause in (Cause.KNOWN_FAMILY, Cause.QUIET_PERIOD_OVER) or after.difference is None:
        return {}
    evidence = math.exp(min(after.difference.log_e, math.log(MOST_EVIDENCE)))
    return _counts(after.difference.seen) | {"evidence": f"{evidence:.4g}"}


def _counts(arms: Arms) -> dict[str, str]:
    numbers = {
        "answers": arms.engine.judged,
        "failures": arms.engine.failed,
        "truncated": arms.engine.truncated,
        "controlAnswers": arms.control.judged,
        "controlFailures": arms.control.failed,
        "controlTruncated": arms.control.truncated,
    }
    return {name: str(number) for name, number in numbers.items()}

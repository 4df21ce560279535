"""What is remembered of one route between two looks, and how a restart of the operator gets it back from the status.

State, cause, flaps and the count of tests live in the status. Windows and running tests do not: they begin anew, which
delays a conclusion and never brings one forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from pagefleet_operator.api.status import RouteState, RouteStatus
from pagefleet_operator.remedies.precision.counts import Arms
from pagefleet_operator.remedies.precision.difference import Difference
from pagefleet_operator.remedies.precision.screen import Window

STEP: Final = 5_000
"""Answers since a test are written in such steps, rounded down, so that a steady route writes no status."""


class Cause(StrEnum):
    """Why a route is in its state; also the reason of the decision that led there."""

    NEW = "New"
    """Never looked at."""
    WATCHED = "Watched"
    """Nothing has happened to it."""
    RATE_ABOVE_BOUND = "SchemaFailureRateAboveBound"
    """The first stage found the engine's arm above the bound."""
    DIFFERENCE_CONFIRMED = "DifferenceConfirmed"
    """The second stage found the engine's precision worse than the fallback."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """As before, but there are not the bytes for the fallback precision."""
    CONCLUSION_EXPIRED = "ConclusionExpired"
    """There was no room for so many answers that the difference has to be found anew."""
    NO_DIFFERENCE = "NoDifference"
    """The second stage found both precisions alike."""
    TEST_INCONCLUSIVE = "TestInconclusive"
    """The second stage ended at its limit."""
    KNOWN_FAMILY = "KnownFamily"
    """The model is of a family that an FP8 KV cache is known to damage."""
    QUIET_PERIOD_OVER = "QuietPeriodOver"
    """The route has been in fallback for `returnAfter`."""
    PROBE_CLEAN = "ProbeClean"
    """The probes were as they should be."""
    PROBE_FAILED = "ProbeFailed"
    """The probes were worse than the fallback."""
    PROBE_INCONCLUSIVE = "ProbeInconclusive"
    """The probes ended at their limit."""
    RESET = "Reset"
    """A person reset the route."""


class Moment(NamedTuple):
    """One instant on both clocks: intervals are taken on the first, the second is shown to people."""

    monotonic: float  # seconds
    wall: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One route."""

    state: RouteState = RouteState.NORMAL
    cause: Cause = Cause.NEW
    since: Moment | None = None
    flaps: tuple[Moment, ...] = ()  # when the engine's precision was found worse, oldest first
    tests: int = 0  # begun since the last long time without one
    since_test: int | None = None  # answers since the last one ended without a move
    window: Window = Window()
    difference: Difference | None = None  # the running test, or else the last one; None after a restart
    held: int = 0  # answers since a difference was confirmed for which there is no room


def enter(memory: Memory, state: RouteState, cause: Cause, now: Moment) -> Memory:
    """In another state, or in the same for another cause, with an empty window; the last test is kept to be told of."""
    since = memory.since if state is memory.state else now
    return replace(memory, state=state, cause=cause, since=since, window=Window(), held=0)


def reset(memory: Memory, now: Moment) -> Memory:
    """As a person's `pagefleet.io/reset-precision` asks: back to the engine's precision, flaps and latch forgotten."""
    return Memory(state=RouteState.NORMAL, cause=Cause.RESET, since=now)


def to_status(memory: Memory, route: RouteStatus) -> RouteStatus:
    """The route's status with the memory in it; name, model and precision are the caller's."""
    seen = seen_of(memory)
    return route.model_copy(
        update={
            "state": memory.state,
            "reason": str(memory.cause),
            "samples": seen.engine.judged,
            "schema_failures": seen.engine.failed,
            "since": memory.since.wall.replace(microsecond=0) if memory.since else None,
            "flaps": tuple(flap.wall.replace(microsecond=0) for flap in memory.flaps),
            "tests": memory.tests,
            "answers_since_test": None if memory.since_test is None else memory.since_test // STEP * STEP,
        }
    )


def seen_of(memory: Memory) -> Arms:
    """The answers that the state is judged by: the window, or those of the test."""
    if memory.state is RouteState.NORMAL:
        return memory.window.total
    return memory.difference.seen if memory.difference else Arms()


def restore(status: RouteStatus | None, now: Moment) -> Memory:
    """The memory that a status holds; a time in the future counts as now. Without a status: a new route."""
    if status is None:
        return Memory()
    return Memory(
        state=status.state,
        cause=_cause(status.reason),
        since=_moment(status.since, now) if status.since else None,
        flaps=tuple(_moment(flap, now) for flap in status.flaps),
        tests=status.tests,
        since_test=status.answers_since_test,
    )


def _moment(wall: datetime, now: Moment) -> Moment:
    return Moment(now.monotonic - max(0.0, (now.wall - wall).total_seconds()), wall)


def _cause(reason: str | None) -> Cause:
    return Cause(reason) if reason in set(Cause) else Cause.NEW

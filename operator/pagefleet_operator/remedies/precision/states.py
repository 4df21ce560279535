"""The transitions of one route: a function per state, each returns the memory after the look.

    Normal --rate above the bound--> Testing --worse--> Fallback --returnAfter--> Probing --clean--> Normal
      ^------ no difference, or limit ---'                 ^------ worse, or limit ---'
    the third time worse within 24 h --> Latched, until a person resets

Testing that found a difference but no room for the move waits for it, for so many answers, and ends in Normal.

At most one transition per look. A transition shows in the cause of the memory; `words` says it in sentences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagefleet_operator.api.status import RouteState
from pagefleet_operator.remedies.precision.clean import is_clean
from pagefleet_operator.remedies.precision.counts import Arms
from pagefleet_operator.remedies.precision.difference import Difference
from pagefleet_operator.remedies.precision.limits import (
    ALPHA,
    BETA,
    FLAPS_WITHIN_S,
    FORGET_AFTER,
    MAX_FLAPS,
    PROBE_ALPHA,
    Limits,
    rest_after,
)
from pagefleet_operator.remedies.precision.look import Enough, Look
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment, enter
from pagefleet_operator.remedies.precision.screen import is_above

STARTING: Final = (Cause.NEW, Cause.KNOWN_FAMILY)
"""Causes of a route that has not been under the policy Auto before."""


def step_normal(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """Watches the failure rate, unless the last test is too near."""
    if memory.cause in STARTING and look.family is not None:
        return enter(memory, RouteState.FALLBACK, Cause.KNOWN_FAMILY, look.now)
    watched = _count_towards_rest(memory, arms, limits)
    if is_resting(watched) or not is_above(watched.window, limits.bound, limits.min_samples):
        return watched
    return begin_test(watched, look, limits)


def begin_test(memory: Memory, look: Look, limits: Limits) -> Memory:
    """The second stage, with one more test on the account; the window is kept to be told of."""
    testing = enter(memory, RouteState.TESTING, Cause.RATE_ABOVE_BOUND, look.now)
    return replace(testing, tests=memory.tests + 1, window=memory.window, difference=_fresh(look, limits))


def step_testing(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """Compares both arms until they differ, are alike, or the limit is reached."""
    if memory.cause is Cause.INSUFFICIENT_CAPACITY:
        return _hold(memory, look, arms, limits)
    if memory.difference is None:
        return replace(memory, difference=_fresh(look, limits))
    difference = memory.difference.add(arms)
    grown = replace(memory, difference=difference)
    if difference.has(limits.min_samples):
        if difference.is_worse(ALPHA):
            return _move(grown, look)
        if difference.is_equal(BETA):
            return end_test(grown, Cause.NO_DIFFERENCE, look.now)
    if difference.seen.answers >= limits.test_answers:
        return end_test(grown, Cause.TEST_INCONCLUSIVE, look.now)
    return grown


def end_test(memory: Memory, cause: Cause, now: Moment) -> Memory:
    """Back to Normal; the rest before the next test begins."""
    return replace(enter(memory, RouteState.NORMAL, cause, now), since_test=0)


def step_fallback(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """Waits for the end of the quiet period."""
    since = memory.since or look.now
    if memory.cause is Cause.KNOWN_FAMILY or look.now.monotonic - since.monotonic < limits.return_after_s:
        return replace(memory, since=since)
    probing = enter(memory, RouteState.PROBING, Cause.QUIET_PERIOD_OVER, look.now)
    return replace(probing, difference=_fresh(look, limits))


def step_probing(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """Compares the probes with the rest of the route, and with the bound."""
    if memory.difference is None:
        return replace(memory, difference=_fresh(look, limits))
    difference = memory.difference.add(arms)
    grown = replace(memory, difference=difference)
    if difference.has(limits.min_samples):
        if difference.is_worse(PROBE_ALPHA):
            return _fall_back(grown, look, Cause.PROBE_FAILED)
        probes = difference.seen.engine
        if difference.is_equal(BETA) or (probes.judged >= limits.min_samples and is_clean(probes, limits.bound, BETA)):
            return enter(grown, RouteState.NORMAL, Cause.PROBE_CLEAN, look.now)
    if difference.seen.answers >= limits.probe_answers:
        return enter(grown, RouteState.FALLBACK, Cause.PROBE_INCONCLUSIVE, look.now)
    return grown


def step_latched(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """Waits for a person."""
    return memory


STEPS: Final = {
    RouteState.NORMAL: step_normal,
    RouteState.TESTING: step_testing,
    RouteState.FALLBACK: step_fallback,
    RouteState.PROBING: step_probing,
    RouteState.LATCHED: step_latched,
}


def is_resting(memory: Memory) -> bool:
    """Whether no test may begin yet."""
    if memory.state is not RouteState.NORMAL or memory.since_test is None:
        return False
    return memory.since_test < rest_after(memory.tests)


def _move(memory: Memory, look: Look) -> Memory:
    """To the fallback precision if the bytes are there; else the conclusion is kept until they are."""
    if isinstance(look.room, Enough):
        return _fall_back(memory, look, Cause.DIFFERENCE_CONFIRMED)
    return replace(memory, cause=Cause.INSUFFICIENT_CAPACITY)


def _hold(memory: Memory, look: Look, arms: Arms, limits: Limits) -> Memory:
    """The move, if there is room now. What was concluded of old answers is no reason to move for ever.

    Then the first stage begins at once: without a rest, since a move still needs a conclusion that is seldom wrong.
    """
    moved = _move(replace(memory, held=memory.held + arms.answers), look)
    if moved.state is not RouteState.TESTING or moved.held < limits.held_answers:
        return moved
    expired = enter(memory, RouteState.NORMAL, Cause.CONCLUSION_EXPIRED, look.now)
    return replace(expired, since_test=rest_after(memory.tests))


def _fall_back(memory: Memory, look: Look, cause: Cause) -> Memory:
    recent = [flap for flap in memory.flaps if look.now.monotonic - flap.monotonic < FLAPS_WITHIN_S]
    flaps = (*recent, look.now)[-MAX_FLAPS:]
    state = RouteState.LATCHED if len(flaps) >= MAX_FLAPS else RouteState.FALLBACK
    return replace(enter(memory, state, cause, look.now), flaps=flaps)


def _fresh(look: Look, limits: Limits) -> Difference:
    """A test that passes over the answers of requests that began before it; also what a restart begins anew with."""
    return Difference(settling=max(limits.min_samples, look.in_flight))


def _count_towards_rest(memory: Memory, arms: Arms, limits: Limits) -> Memory:
    cause = Cause.WATCHED if memory.cause is Cause.NEW else memory.cause
    window = memory.window.add(arms, limits.window) if arms.answers else memory.window
    if memory.since_test is None:
        return replace(memory, cause=cause, window=window)
    passed = memory.since_test + arms.answers
    forgotten = passed >= FORGET_AFTER
    return replace(
        memory,
        cause=cause,
        window=window,
        tests=0 if forgotten else memory.tests,
        since_test=None if forgotten else passed,
    )

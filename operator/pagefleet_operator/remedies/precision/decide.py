"""Whether a route stays in the engine's KV precision: the one entry point, called for every route at every look.

Pure. Under Auto the states of `states` decide. Advisory watches and tests with the control share that is there, and
records what it would have done. Off, and an engine that runs in the fallback precision anyway, change nothing; what
was remembered stays, so that a latch outlives a change of policy. A paused service is left as it is.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import RouteState
from pagefleet_operator.remedies.precision import words
from pagefleet_operator.remedies.precision.counts import sort_into_arms
from pagefleet_operator.remedies.precision.decisions import record
from pagefleet_operator.remedies.precision.limits import PROBE_CONTROL_SHARE, TEST_SHARE, Limits
from pagefleet_operator.remedies.precision.look import Answer, Look, Wanted
from pagefleet_operator.remedies.precision.memory import Cause, Memory
from pagefleet_operator.remedies.precision.states import STARTING, STEPS, end_test

MOVED = (RouteState.FALLBACK, RouteState.LATCHED)


def decide(memory: Memory, look: Look) -> Answer:
    """The route's memory after this look, what it should run in, and what is to be told."""
    limits = Limits.of(look.spec)
    after = advance(memory, look, limits)
    wanted = want(after, look)
    return Answer(
        memory=after,
        wanted=wanted,
        decisions=record(memory, after, look, was=want(memory, look), wanted=wanted),
        fact=words.state_fact(after, look),
        what_next="" if look.paused else words.say_what_next(after, look, limits),
    )


def want(memory: Memory, look: Look) -> Wanted:
    """What new requests of a route with this memory run in."""
    precision, share = look.engine, look.control_share
    if not is_applicable(look):
        share = 0.0
    elif look.policy is Mode.AUTO:
        if memory.state in MOVED:
            precision, share = look.spec.fallback, 0.0
        elif memory.state is RouteState.PROBING:
            share = PROBE_CONTROL_SHARE
        elif memory.state is RouteState.TESTING and memory.cause is not Cause.INSUFFICIENT_CAPACITY:
            share = TEST_SHARE
    return Wanted(
        precision=precision,
        control_precision=look.spec.fallback,
        control_share=share,
        allow_demotion=look.spec.allow_demotion and precision is look.engine,
    )


def is_applicable(look: Look) -> bool:
    """Whether there is a policy, and another precision to fall back to."""
    return look.policy is not Mode.OFF and look.spec.fallback is not look.engine


def advance(memory: Memory, look: Look, limits: Limits) -> Memory:
    """The memory after this look: the decision without its words."""
    if look.paused or not is_applicable(look):
        return memory
    arms = sort_into_arms(look.counts, engine=look.engine, fallback=look.spec.fallback)
    if look.policy is Mode.AUTO:
        return STEPS[memory.state](memory, look, arms, limits)
    if memory.state in (RouteState.NORMAL, RouteState.TESTING):
        known = memory.cause is Cause.KNOWN_FAMILY
        step = STEPS[memory.state](memory, replace(look, family=None) if known else look, arms, limits)
        return _only_recorded(memory, step, look)
    return memory


def _only_recorded(before: Memory, after: Memory, look: Look) -> Memory:
    """A move under Advisory: the conclusion is recorded, the route stays where it is and rests."""
    if after.cause is Cause.KNOWN_FAMILY and before.cause in STARTING:
        return replace(before, cause=Cause.KNOWN_FAMILY)
    if after.state in MOVED or after.cause is Cause.INSUFFICIENT_CAPACITY:
        return replace(end_test(after, Cause.DIFFERENCE_CONFIRMED, look.now), flaps=before.flaps)
    return after

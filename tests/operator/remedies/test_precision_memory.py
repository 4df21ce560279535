"""A restart of the operator in any state: what the status holds, and that the route goes on from there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec, Mode
from pagefleet_operator.api.status import LLMServiceStatus, RouteState, RouteStatus, parse_status, render_status
from pagefleet_operator.remedies.precision.counts import Arms, Tally
from pagefleet_operator.remedies.precision.decide import decide, want
from pagefleet_operator.remedies.precision.decisions import record_reset
from pagefleet_operator.remedies.precision.difference import Difference
from pagefleet_operator.remedies.precision.families import FAMILIES, find_family
from pagefleet_operator.remedies.precision.look import Enough, Look
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment, reset, restore, to_status
from pagefleet_operator.remedies.precision.screen import Window

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
THEN = Moment(500.0, NOON)
NOW = Moment(7.0, NOON + timedelta(seconds=600))  # another process: the monotonic clock began anew
ROUTE = RouteStatus(name="tools", model="smollm2-tools", kv_precision=Precision.FP8_E4M3)
SEEN = Arms(engine=Tally(valid=90, failed=10, truncated=3), control=Tally(valid=5))


def look(seconds=0.0, **changes):
    given = Look(
        route="tools", spec=KvPrecisionSpec(), policy=Mode.AUTO, control_share=0.05, engine=Precision.FP8_E4M3,
        counts={}, room=Enough(), now=Moment(NOW.monotonic + seconds, NOW.wall + timedelta(seconds=seconds)),
    )  # fmt: skip
    return replace(given, **changes)


def through_status(memory):
    """As the API server would give it back."""
    stored = render_status(LLMServiceStatus(routes=(to_status(memory, ROUTE),)))
    return restore(parse_status(stored).routes[0], NOW)


MEMORIES = {
    "normal": Memory(state=RouteState.NORMAL, cause=Cause.WATCHED, window=Window(chunks=(SEEN,))),
    "resting": Memory(state=RouteState.NORMAL, cause=Cause.NO_DIFFERENCE, since=THEN, tests=2, since_test=12_345),
    "testing": Memory(
        state=RouteState.TESTING, cause=Cause.RATE_ABOVE_BOUND, since=THEN, tests=1, difference=Difference()
    ),
    "held": Memory(state=RouteState.TESTING, cause=Cause.INSUFFICIENT_CAPACITY, since=THEN, tests=1),
    "fallback": Memory(state=RouteState.FALLBACK, cause=Cause.DIFFERENCE_CONFIRMED, since=THEN, flaps=(THEN,)),
    "a damaged family": Memory(state=RouteState.FALLBACK, cause=Cause.KNOWN_FAMILY, since=THEN),
    "probing": Memory(state=RouteState.PROBING, cause=Cause.QUIET_PERIOD_OVER, since=THEN, flaps=(THEN, THEN)),
    "latched": Memory(state=RouteState.LATCHED, cause=Cause.PROBE_FAILED, since=THEN, flaps=(THEN, THEN, THEN)),
    "reset": Memory(state=RouteState.NORMAL, cause=Cause.RESET, since=THEN),
}


@pytest.mark.parametrize("before", MEMORIES.values(), ids=MEMORIES.keys())
def test_a_restart_keeps_all_but_windows_and_running_tests(before):
    after = through_status(before)
    assert (after.state, after.cause, after.tests) == (before.state, before.cause, before.tests)
    assert [flap.wall for flap in after.flaps] == [flap.wall for flap in before.flaps]
    assert after.since_test == (10_000 if before.since_test else None)
    assert (after.window, after.difference) == (Window(), None)


@pytest.mark.parametrize("before", MEMORIES.values(), ids=MEMORIES.keys())
def test_a_restart_changes_nothing_that_the_engines_were_told(before):
    assert want(through_status(before), look()) == want(before, look())
    told = decide(through_status(before), look()).decisions
    assert [decision.reason for decision in told] == (["DifferenceConfirmed"] if before is MEMORIES["held"] else [])


@pytest.mark.parametrize("state", RouteState)
def test_a_status_with_an_unknown_reason_is_gone_on_with(state):
    stored = ROUTE.model_copy(update={"state": state, "reason": "FromAnotherVersion"})
    answer = decide(restore(stored, NOW), look())
    assert answer.memory.state is state
    assert answer.decisions == ()


def test_the_quiet_period_goes_on_over_a_restart():
    restored = through_status(MEMORIES["fallback"])
    assert decide(restored, look(1_199)).memory.state is RouteState.FALLBACK
    assert decide(restored, look(1_200)).memory.state is RouteState.PROBING


def test_a_time_in_the_future_counts_as_now():
    status = ROUTE.model_copy(update={"state": RouteState.FALLBACK, "since": NOW.wall + timedelta(days=1)})
    since = restore(status, NOW).since
    assert since is not None
    assert since.monotonic == NOW.monotonic


def test_a_route_without_a_status_or_with_a_foreign_one_is_new():
    assert restore(None, NOW) == Memory()
    assert restore(ROUTE.model_copy(update={"reason": "FromAnotherVersion"}), NOW) == Memory()


def test_the_status_shows_the_window_and_then_the_test():
    normal = to_status(MEMORIES["normal"], ROUTE)
    assert (normal.samples, normal.schema_failures, normal.reason) == (100, 10, "Watched")
    testing = to_status(replace(MEMORIES["testing"], difference=Difference(seen=SEEN + SEEN)), ROUTE)
    assert (testing.samples, testing.schema_failures, testing.since) == (200, 20, NOON)
    assert (testing.name, testing.model, testing.kv_precision) == (ROUTE.name, ROUTE.model, ROUTE.kv_precision)


def test_a_reset_is_recorded():
    latched = MEMORIES["latched"]
    decision = record_reset(latched, "tools", NOW)
    assert (decision.from_, decision.to, decision.reason) == ("Latched", "Normal", "Reset")
    assert decision.message == "Route tools: a person reset it; 3 flaps are forgotten."
    assert reset(latched, NOW).flaps == ()


MODELS = {
    "by its name, letter case aside": ("Qwen2.5-MATH-7B", "file:///models/m", "qwen2.5-math"),
    "by its address": (None, "hf://Qwen/Qwen2.5-Math-7B-Instruct", "qwen2.5-math"),
    "GLM 5.1": (None, "hf://zai-org/GLM-5.1-FP8", "glm-5.1"),
    "not its relatives": ("qwen2.5-7b", "hf://zai-org/GLM-5.2", None),
    "not the model of the demo": ("smollm2", "file:///models/smollm2", None),
}


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS.keys())
def test_a_damaged_family_is_found(case):
    name, uri, part = case
    found = find_family(name, uri)
    assert (found.part if found else None) == part


def test_every_family_says_where_its_damage_was_reported():
    assert all(family.source.startswith("https://") and family.part == family.part.lower() for family in FAMILIES)

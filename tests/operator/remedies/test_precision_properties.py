"""Whatever is counted, in whatever order: no route leaves the rules of its states, no share leaves 0..1."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.conditions import ConditionStatus
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec, Mode
from pagefleet_operator.api.status import LLMServiceStatus, RouteState, RouteStatus, parse_status, render_status
from pagefleet_operator.remedies.precision.decide import decide
from pagefleet_operator.remedies.precision.families import FAMILIES
from pagefleet_operator.remedies.precision.limits import FLAPS_WITHIN_S, MAX_FLAPS
from pagefleet_operator.remedies.precision.look import Enough, Look, NotEnough
from pagefleet_operator.remedies.precision.memory import Memory, Moment, reset, restore, to_status

FP8, BF16 = Precision.FP8_E4M3, Precision.BF16
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = KvPrecisionSpec(min_samples=5, window_requests=50, return_after="1m")
N, T, F, P, L = RouteState
ALLOWED = {N: {N, T, F}, T: {T, N, F, L}, F: {F, P}, P: {P, N, F, L}, L: {L}}

few = st.integers(0, 200)
answers = st.fixed_dictionaries(
    {
        **{
            (precision, outcome): few for precision in (FP8, BF16) for outcome in ("valid", "invalid_json", "truncated")
        },
        ("mixed", "schema_violation"): few,
        (FP8, "aborted"): few,
    }
)
rooms = st.sampled_from([Enough(), NotEnough(needed_share=1.2, allowed_share=0.9)])
looks = st.tuples(answers, rooms, st.sampled_from([5.0, 90.0, 3_600.0]), st.booleans(), few)
policies = st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.AUTO, Mode.ADVISORY, Mode.OFF])


def moment(seconds, offset=0.0):
    return Moment(seconds + offset, START + timedelta(seconds=seconds))


def a_look(counts, room, now, *, policy=Mode.AUTO, in_flight=0, family=None):
    return Look(
        route="tools", spec=SPEC, policy=policy, control_share=0.05, engine=FP8, counts=counts, room=room, now=now,
        in_flight=in_flight, family=family,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(history=st.lists(looks, max_size=40), known=st.booleans())
def test_a_route_moves_only_along_its_states(history, known):
    memory, seconds = Memory(), 0.0
    family = FAMILIES[0] if known else None
    for counts, room, pause, restarts, in_flight in history:
        seconds += pause
        if restarts:
            stored = render_status(LLMServiceStatus(routes=(to_status(memory, RouteStatus(name="tools")),)))
            memory = restore(parse_status(stored).routes[0], moment(seconds))
        answer = decide(memory, a_look(counts, room, moment(seconds), in_flight=in_flight, family=family))
        check_step(memory, answer, room)
        memory = answer.memory


def check_step(before, answer, room):
    after = answer.memory
    assert after.state in ALLOWED[before.state]
    assert 0.0 <= answer.wanted.control_share <= 1.0
    assert (answer.wanted.precision is BF16) == (after.state in (F, L))
    assert len(answer.decisions) <= 1
    assert bool(answer.decisions) or before.state is after.state
    assert all(len(value) <= 16 for decision in answer.decisions for value in decision.measurements.values())
    if before.state is T and after.state in (F, L):
        assert room == Enough()
    assert (answer.fact.status is ConditionStatus.TRUE) == (after.state in (F, P, L))
    assert (after.state is L) == (
        before.state is L or (len(after.flaps) == MAX_FLAPS and after.state is not before.state)
    )
    assert len(after.flaps) <= MAX_FLAPS
    assert after.state is before.state or after.since is not None


@settings(max_examples=100, deadline=None)
@given(history=st.lists(st.tuples(looks, policies), max_size=30))
def test_a_latch_is_final_until_it_is_reset(history):
    flaps = tuple(moment(n) for n in range(3))
    latched = replace(Memory(), state=L, flaps=flaps, since=moment(0))
    memory, seconds = latched, 0.0
    for (counts, room, pause, _, _), policy in history:
        seconds += pause * FLAPS_WITHIN_S
        memory = decide(memory, a_look(counts, room, moment(seconds), policy=policy)).memory
        assert memory == latched
    assert reset(memory, moment(seconds)).state is N


@settings(max_examples=100, deadline=None)
@given(history=st.lists(looks, max_size=30), policy=st.sampled_from([Mode.ADVISORY, Mode.OFF]))
def test_without_auto_nothing_is_asked_of_an_engine(history, policy):
    memory, seconds = Memory(), 0.0
    for counts, room, pause, _, _ in history:
        seconds += pause
        answer = decide(memory, a_look(counts, room, moment(seconds), policy=policy))
        memory = answer.memory
        assert (answer.wanted.precision, answer.wanted.control_share) in ((FP8, 0.05), (FP8, 0.0))
        assert memory.state in (N, T)
        assert all(decision.advisory for decision in answer.decisions)
        assert policy is Mode.ADVISORY or not answer.decisions


@given(counts=answers, room=rooms)
def test_the_same_look_again_after_a_quiet_one_tells_nothing_new(counts, room):
    memory = decide(Memory(), a_look(counts, room, moment(1))).memory
    settled = decide(memory, a_look({}, room, moment(2)))
    again = decide(settled.memory, a_look({}, room, moment(3)))
    assert again.memory == settled.memory
    assert again.decisions == ()

"""Conditions follow metav1: the transition time moves with the status only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pagefleet_operator.api.conditions import (
    MAX_MESSAGE,
    Condition,
    ConditionState,
    ConditionStatus,
    ConditionType,
    Reason,
    bounded,
    find_condition,
    set_condition,
    set_conditions,
)

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def state(status=ConditionStatus.TRUE, reason=Reason.SETTLED, message="all well", generation=1, kind=None):
    return ConditionState(
        type=kind or ConditionType.READY, status=status, reason=reason, message=message, observed_generation=generation
    )


def test_the_first_one_has_the_time_in_whole_seconds():
    (condition,) = set_condition((), state(), NOON)
    assert condition == Condition(
        type="Ready",
        status=ConditionStatus.TRUE,
        reason="Settled",
        message="all well",
        observed_generation=1,
        last_transition_time=NOON.replace(microsecond=0),
    )


def test_reason_message_and_generation_follow_without_a_transition():
    before = set_condition((), state(), NOON)
    (after,) = set_condition(before, state(reason=Reason.PAUSED, message="paused", generation=2), LATER)
    assert (after.reason, after.message, after.observed_generation) == ("Paused", "paused", 2)
    assert after.last_transition_time == before[0].last_transition_time


def test_a_flip_moves_the_time():
    before = set_condition((), state(), NOON)
    (after,) = set_condition(before, state(status=ConditionStatus.FALSE), LATER)
    assert after.last_transition_time == LATER.replace(microsecond=0)


def test_the_same_again_is_equal():
    before = set_condition((), state(), NOON)
    assert set_condition(before, state(), LATER) == before


def test_all_types_are_present_in_their_order():
    result = set_conditions((), [state()], NOON)
    assert [condition.type for condition in result] == list(ConditionType)
    unknown = {condition.reason for condition in result if condition.type != "Ready"}
    assert unknown == {"NotObserved"}


def test_a_type_of_another_version_is_dropped():
    (known,) = set_condition((), state(), NOON)
    foreign = known.model_copy(update={"type": "Foreign"})
    assert [c.type for c in set_condition((foreign, known), state(kind=ConditionType.ACCEPTED), NOON)] == [
        "Accepted",
        "Ready",
    ]


def test_a_long_message_is_cut():
    (condition,) = set_condition((), state(message="x" * 5000), NOON)
    assert len(condition.message) == MAX_MESSAGE
    assert condition.message.endswith("x…")


def test_a_short_text_is_not_cut():
    assert bounded("abc", 3) == "abc"


def test_finding():
    conditions = set_condition((), state(), NOON)
    assert find_condition(conditions, ConditionType.READY) == conditions[0]
    assert find_condition(conditions, ConditionType.DRAINING) is None

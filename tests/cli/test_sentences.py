"""Single sentences, and which conditions are worth one."""

from datetime import UTC, datetime, timedelta

import pytest

from pagefleet_cli.sentences import age, decision_sentence, measurements, percent, troubles
from pagefleet_operator.api.conditions import Condition, ConditionStatus, ConditionType
from pagefleet_operator.api.status import Decision

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def decision(**changes):
    fields = {"time": NOW, "remedy": "Tune", "from": "8", "to": "6", "reason": "RequestsSwapped", "message": "why"}
    return Decision.model_validate(fields | changes)


SENTENCES = {
    "a change of one pod": ({"subject": "chat-0"}, "tuned chat-0 from 8 to 6 (RequestsSwapped): why."),
    "a change of the service": ({"remedy": "Scale"}, "scaled from 8 to 6 (RequestsSwapped): why."),
    "advice": ({"advisory": True}, "would have tuned from 8 to 6 (RequestsSwapped): why."),
    "a hold": ({"remedy": "Hold", "to": "8"}, "held at 8 (RequestsSwapped): why."),
    "a route": (
        {"remedy": "Precision", "subject": "tools", "from": "fp8_e4m3", "to": "bf16", "reason": "DifferenceConfirmed"},
        "moved the precision tools from fp8_e4m3 to bf16 (DifferenceConfirmed): why.",
    ),
    "a message with its full stop": ({"message": "It is so."}, "tuned from 8 to 6 (RequestsSwapped): It is so."),
}


@pytest.mark.parametrize(("changes", "want"), SENTENCES.values(), ids=SENTENCES.keys())
def test_a_decision_is_a_sentence(changes, want):
    assert decision_sentence(decision(**changes)) == want


def test_measurements_are_words_and_numbers():
    found = decision(measurements={"timeToFirstToken": "3.2", "swaps": "2"})
    assert measurements(found) == "time to first token 3.2, swaps 2"
    assert measurements(decision()) == ""


AGES = {
    "seconds": (59, "59 s"),
    "minutes": (60, "1 min"),
    "hours": (7199, "1 h"),
    "days": (200_000, "2 d"),
    "a clock behind the cluster's": (-5, "0 s"),
}


@pytest.mark.parametrize(("seconds", "want"), AGES.values(), ids=AGES.keys())
def test_ages_have_one_unit(seconds, want):
    assert age(NOW - timedelta(seconds=seconds), NOW) == want


@pytest.mark.parametrize(("ratio", "want"), [("0.35", "35%"), ("1", "100%"), ("odd", "odd")])
def test_a_ratio_is_a_percentage(ratio, want):
    assert percent(ratio) == want


def condition(kind, status, reason="Reason"):
    return Condition(type=kind, status=status, reason=reason, last_transition_time=NOW)


TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
SHOWN = {
    "what should hold and does": (ConditionType.READY, TRUE, "Reason", False),
    "what should hold and does not": (ConditionType.READY, FALSE, "Reason", True),
    "what nobody knows": (ConditionType.READY, UNKNOWN, "Reason", True),
    "what nobody asked for": (ConditionType.SCALING_ACTIVE, FALSE, "NotConfigured", False),
    "what should not hold and does": (ConditionType.DEGRADED, TRUE, "Reason", True),
    "what should not hold and does not": (ConditionType.DEGRADED, FALSE, "AsExpected", False),
    "a fleet that has come to rest": (ConditionType.PROGRESSING, FALSE, "Settled", False),
    "a fleet that does not get on": (ConditionType.PROGRESSING, FALSE, "ProgressDeadlineExceeded", True),
    "pods on their way out": (ConditionType.DRAINING, TRUE, "PodsDraining", True),
}


@pytest.mark.parametrize(("kind", "status", "reason", "want"), SHOWN.values(), ids=SHOWN.keys())
def test_conditions_that_are_as_they_should_be_are_left_out(kind, status, reason, want):
    assert bool(list(troubles([condition(kind, status, reason)]))) is want


def test_every_condition_type_is_judged():
    """A new type that is bad when true has to be added to the list in `sentences`."""
    shown = {c.type for c in troubles([condition(kind, TRUE) for kind in ConditionType])}
    assert shown == {"Progressing", "ScalingLimited", "PrecisionFallback", "Draining", "Degraded"}

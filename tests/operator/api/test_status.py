"""The status survives what other versions wrote, and is written without absent fields."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pagefleet_operator.api.status import Decision, LLMServiceStatus, Remedy, parse_status, render_status

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Settled",
    "message": "all well",
    "observedGeneration": 3,
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}


def test_what_is_written_is_read_back():
    raw = {"observedGeneration": 3, "conditions": [READY], "pods": [], "routes": [], "next": [], "decisions": []}
    assert render_status(parse_status(raw)) == raw


def test_a_decision_is_written_with_from():
    decision = Decision(
        time=datetime(2026, 3, 1, 12, tzinfo=UTC),
        remedy=Remedy.TUNE,
        from_="32",
        to="16",
        reason="Swapping",
        message="3 requests were swapped out",
    )
    (written,) = render_status(LLMServiceStatus(decisions=(decision,)))["decisions"]
    assert written == {
        "time": "2026-03-01T12:00:00Z",
        "remedy": "Tune",
        "from": "32",
        "to": "16",
        "reason": "Swapping",
        "message": "3 requests were swapped out",
        "advisory": False,
        "measurements": {},
    }


@pytest.mark.parametrize("raw", [None, {}])
def test_no_status_is_an_empty_one(raw):
    assert parse_status(raw) == LLMServiceStatus()


def test_parts_that_cannot_be_read_are_left_out():
    raw = {"replicas": 2, "conditions": [{"type": "Ready"}], "pods": "many", "formerly": 1}
    assert parse_status(raw) == LLMServiceStatus(replicas=2)


def test_a_condition_with_more_fields_keeps_its_transition_time():
    (condition,) = parse_status({"conditions": [READY | {"formerly": 1}]}).conditions
    assert condition.last_transition_time == datetime(2026, 3, 1, 12, tzinfo=UTC)

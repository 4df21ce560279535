"""The life of a route, one sentence per transition; times in seconds, answers in looks of a hundred."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.conditions import ConditionStatus, Reason
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec, Mode
from pagefleet_operator.api.status import Remedy, RouteState
from pagefleet_operator.remedies.precision.counts import Arms, Tally
from pagefleet_operator.remedies.precision.decide import decide, want
from pagefleet_operator.remedies.precision.difference import Difference
from pagefleet_operator.remedies.precision.families import FAMILIES
from pagefleet_operator.remedies.precision.limits import FORGET_AFTER, REST
from pagefleet_operator.remedies.precision.look import Enough, Look, NotEnough
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment, reset

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FP8, BF16 = Precision.FP8_E4M3, Precision.BF16
SHORT = NotEnough(needed_share=1.2, allowed_share=0.9)
GOOD_LOOK = {(FP8, "valid"): 95, (BF16, "valid"): 5}
BAD_LOOK = {(FP8, "valid"): 75, (FP8, "invalid_json"): 20, (BF16, "valid"): 5}
WORSE = {(FP8, "valid"): 400, (FP8, "schema_violation"): 100, (BF16, "valid"): 490, (BF16, "invalid_json"): 10}
ALIKE = {(FP8, "valid"): 400, (FP8, "schema_violation"): 100, (BF16, "valid"): 400, (BF16, "invalid_json"): 100}
NOTHING = {(FP8, "valid"): 1_000, (BF16, "valid"): 1_000}
CLEAN_PROBES = {(FP8, "valid"): 100, (BF16, "valid"): 900}
BAD_PROBES = {(FP8, "valid"): 80, (FP8, "invalid_json"): 20, (BF16, "valid"): 890, (BF16, "invalid_json"): 10}


def at(seconds):
    return Moment(1_000.0 + seconds, NOON + timedelta(seconds=seconds))


def look(counts, seconds=0.0, **changes):
    given = Look(
        route="tools",
        spec=KvPrecisionSpec(),
        policy=Mode.AUTO,
        control_share=0.05,
        engine=FP8,
        counts=counts,
        room=Enough(),
        now=at(seconds),
    )
    return replace(given, **changes)


def memory(state, cause, **fields):
    return Memory(state=state, cause=cause, since=at(0), **fields)


NORMAL = memory(RouteState.NORMAL, Cause.WATCHED)
TESTING = memory(RouteState.TESTING, Cause.RATE_ABOVE_BOUND, tests=1, difference=Difference())
HELD = memory(RouteState.TESTING, Cause.INSUFFICIENT_CAPACITY, tests=1)
FALLBACK = memory(RouteState.FALLBACK, Cause.DIFFERENCE_CONFIRMED, flaps=(at(0),))
FAMILY = memory(RouteState.FALLBACK, Cause.KNOWN_FAMILY)
PROBING = memory(RouteState.PROBING, Cause.QUIET_PERIOD_OVER, difference=Difference(), flaps=(at(0),))
LATCHED = memory(RouteState.LATCHED, Cause.PROBE_FAILED, flaps=(at(0), at(1), at(2)))
DAY = 24 * 3600.0

CASES = {
    "a new route is watched": (Memory(), look(GOOD_LOOK), "Normal", Cause.WATCHED),
    "a new route of a damaged family starts in fallback": (
        Memory(),
        look({}, family=FAMILIES[0]),
        "Fallback",
        Cause.KNOWN_FAMILY,
    ),
    "a route that is watched already is not moved for its family": (
        NORMAL,
        look({}, family=FAMILIES[0]),
        "Normal",
        Cause.WATCHED,
    ),
    "failures above the bound begin a test": (NORMAL, look(BAD_LOOK), "Testing", Cause.RATE_ABOVE_BOUND),
    "not while the route rests from the last one": (
        replace(NORMAL, tests=1, since_test=REST[0] - 101),
        look(BAD_LOOK),
        "Normal",
        Cause.WATCHED,
    ),
    "but once it has rested": (
        replace(NORMAL, tests=1, since_test=REST[0] - 100),
        look(BAD_LOOK),
        "Testing",
        Cause.RATE_ABOVE_BOUND,
    ),
    "after two tests the rest is longer": (
        replace(NORMAL, tests=2, since_test=REST[0]),
        look(BAD_LOOK),
        "Normal",
        Cause.WATCHED,
    ),
    "a restarted operator begins the test anew": (
        replace(TESTING, difference=None),
        look(WORSE),
        "Testing",
        Cause.RATE_ABOVE_BOUND,
    ),
    "a confirmed difference moves the route": (TESTING, look(WORSE, 9), "Fallback", Cause.DIFFERENCE_CONFIRMED),
    "without room for it the conclusion is held": (
        TESTING,
        look(WORSE, room=SHORT),
        "Testing",
        Cause.INSUFFICIENT_CAPACITY,
    ),
    "a held conclusion waits without looking again": (
        HELD,
        look(GOOD_LOOK, room=SHORT),
        "Testing",
        Cause.INSUFFICIENT_CAPACITY,
    ),
    "a held conclusion counts for so many answers only": (
        replace(HELD, held=990),
        look({(FP8, "valid"): 9, (BF16, "valid"): 1}, room=SHORT),
        "Normal",
        Cause.CONCLUSION_EXPIRED,
    ),
    "one answer fewer and it still does": (
        replace(HELD, held=990),
        look({(FP8, "valid"): 9}, room=SHORT),
        "Testing",
        Cause.INSUFFICIENT_CAPACITY,
    ),
    "room that comes with the last of them is used": (
        replace(HELD, held=990),
        look({(FP8, "valid"): 10}),
        "Fallback",
        Cause.DIFFERENCE_CONFIRMED,
    ),
    "the first stage begins at once after that": (
        replace(memory(RouteState.NORMAL, Cause.CONCLUSION_EXPIRED), tests=1, since_test=REST[0]),
        look(BAD_LOOK, room=SHORT),
        "Testing",
        Cause.RATE_ABOVE_BOUND,
    ),
    "room lets a held conclusion move the route": (HELD, look({}), "Fallback", Cause.DIFFERENCE_CONFIRMED),
    "a harder prompt mix ends the test": (TESTING, look(ALIKE), "Normal", Cause.NO_DIFFERENCE),
    "a test that shows nothing ends at its limit": (TESTING, look(NOTHING), "Normal", Cause.TEST_INCONCLUSIVE),
    "fewer controls than minSamples conclude nothing": (
        TESTING,
        look({(FP8, "invalid_json"): 49, (BF16, "valid"): 49}),
        "Testing",
        Cause.RATE_ABOVE_BOUND,
    ),
    "a route in fallback waits for returnAfter": (FALLBACK, look({}, 1_799), "Fallback", Cause.DIFFERENCE_CONFIRMED),
    "then it is probed": (FALLBACK, look({}, 1_800), "Probing", Cause.QUIET_PERIOD_OVER),
    "a route of a damaged family is never probed by itself": (
        FAMILY,
        look({}, 30 * DAY),
        "Fallback",
        Cause.KNOWN_FAMILY,
    ),
    "clean probes bring the route back": (PROBING, look(CLEAN_PROBES), "Normal", Cause.PROBE_CLEAN),
    "bad probes send it back to fallback": (PROBING, look(BAD_PROBES, 9), "Fallback", Cause.PROBE_FAILED),
    "bad probes where the fallback is as bad are clean": (PROBING, look(ALIKE), "Normal", Cause.PROBE_CLEAN),
    "too few probes conclude nothing": (
        PROBING,
        look({(FP8, "valid"): 49, (BF16, "valid"): 900}),
        "Probing",
        Cause.QUIET_PERIOD_OVER,
    ),
    "probing that shows nothing ends at its limit": (
        PROBING,
        look({(FP8, "truncated"): 49, (BF16, "truncated"): 9_951}),
        "Fallback",
        Cause.PROBE_INCONCLUSIVE,
    ),
    "the third time within a day latches": (
        replace(PROBING, flaps=(at(0), at(1))),
        look(BAD_PROBES, DAY - 1),
        "Latched",
        Cause.PROBE_FAILED,
    ),
    "a flap of more than a day ago is forgotten": (
        replace(PROBING, flaps=(at(0), at(1))),
        look(BAD_PROBES, DAY),
        "Fallback",
        Cause.PROBE_FAILED,
    ),
    "a latched route stays latched": (LATCHED, look(CLEAN_PROBES, 365 * DAY), "Latched", Cause.PROBE_FAILED),
    "Off changes nothing": (NORMAL, look(BAD_LOOK, policy=Mode.OFF), "Normal", Cause.WATCHED),
    "an engine in the fallback precision is left alone": (NORMAL, look(BAD_LOOK, engine=BF16), "Normal", Cause.WATCHED),
    "Advisory tests, too": (NORMAL, look(BAD_LOOK, policy=Mode.ADVISORY), "Testing", Cause.RATE_ABOVE_BOUND),
    "Advisory records the difference and stays": (
        TESTING,
        look(WORSE, policy=Mode.ADVISORY),
        "Normal",
        Cause.DIFFERENCE_CONFIRMED,
    ),
    "Advisory needs no room to record it": (
        TESTING,
        look(WORSE, policy=Mode.ADVISORY, room=SHORT),
        "Normal",
        Cause.DIFFERENCE_CONFIRMED,
    ),
    "Advisory records a damaged family and stays": (
        Memory(),
        look({}, policy=Mode.ADVISORY, family=FAMILIES[1]),
        "Normal",
        Cause.KNOWN_FAMILY,
    ),
    "Advisory watches a damaged family all the same": (
        memory(RouteState.NORMAL, Cause.KNOWN_FAMILY),
        look(BAD_LOOK, policy=Mode.ADVISORY, family=FAMILIES[1]),
        "Testing",
        Cause.RATE_ABOVE_BOUND,
    ),
    "Auto after Advisory moves a damaged family": (
        memory(RouteState.NORMAL, Cause.KNOWN_FAMILY),
        look({}, family=FAMILIES[1]),
        "Fallback",
        Cause.KNOWN_FAMILY,
    ),
    "a latch outlives another policy": (LATCHED, look(BAD_LOOK, policy=Mode.ADVISORY), "Latched", Cause.PROBE_FAILED),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_a_look_leads_to(case):
    before, seen, state, cause = case
    answer = decide(before, seen)
    assert (answer.memory.state, answer.memory.cause) == (state, cause)
    told = (before.state, before.cause) != (state, cause) and cause is not Cause.WATCHED
    assert [decision.reason for decision in answer.decisions] == ([cause] if told else [])


SHARES = {
    "normal": (NORMAL, {}, (FP8, 0.05)),
    "testing": (TESTING, {}, (FP8, 0.5)),
    "held for want of room": (HELD, {}, (FP8, 0.05)),
    "fallback": (FALLBACK, {}, (BF16, 0.0)),
    "probing": (PROBING, {}, (FP8, 0.9)),
    "latched": (LATCHED, {}, (BF16, 0.0)),
    "Off, whatever was before": (LATCHED, {"policy": Mode.OFF}, (FP8, 0.0)),
    "Advisory, whatever was before": (TESTING, {"policy": Mode.ADVISORY}, (FP8, 0.05)),
    "an engine in the fallback precision": (NORMAL, {"engine": BF16}, (BF16, 0.0)),
}


@pytest.mark.parametrize("case", SHARES.values(), ids=SHARES.keys())
def test_what_new_requests_run_in(case):
    before, changes, expected = case
    wanted = want(before, look({}, **changes))
    assert (wanted.precision, wanted.control_share) == expected


@pytest.mark.parametrize(("before", "expected"), [(NORMAL, True), (PROBING, True), (FALLBACK, False), (LATCHED, False)])
def test_frames_of_a_route_in_fallback_are_never_demoted(before, expected):
    assert want(before, look({}, spec=KvPrecisionSpec(allow_demotion=True))).allow_demotion is expected


def test_a_test_passes_over_as_many_answers_as_were_in_flight():
    begun = decide(NORMAL, look(BAD_LOOK, in_flight=300)).memory
    assert begun.difference == Difference(settling=300)
    still = decide(begun, look(BAD_LOOK)).memory
    assert still.difference == Difference(settling=200)


def test_a_long_time_without_a_test_makes_the_rests_short_again():
    rested = decide(replace(NORMAL, tests=3, since_test=FORGET_AFTER - 100), look(GOOD_LOOK)).memory
    assert (rested.tests, rested.since_test) == (0, None)


def test_a_move_is_told_with_its_numbers():
    (decision,) = decide(TESTING, look(WORSE, 9)).decisions
    assert decision.model_dump(exclude={"measurements"}) == {
        "time": at(9).wall,
        "remedy": Remedy.PRECISION,
        "subject": "tools",
        "from_": "fp8_e4m3, 50% bf16",
        "to": "bf16",
        "reason": "DifferenceConfirmed",
        "message": "Route tools: fp8_e4m3 fails more often than bf16, and not by chance.",
        "advisory": False,
    }
    evidence = float(decision.measurements.pop("evidence"))
    assert evidence > 400
    assert decision.measurements == {
        "answers": "500",
        "failures": "100",
        "truncated": "0",
        "controlAnswers": "500",
        "controlFailures": "10",
        "controlTruncated": "0",
    }


def test_the_beginning_of_a_test_is_told_with_the_window():
    (decision,) = decide(NORMAL, look(BAD_LOOK)).decisions
    assert (decision.from_, decision.to) == ("fp8_e4m3, 5% bf16", "fp8_e4m3, 50% bf16")
    assert (decision.measurements["answers"], decision.measurements["failures"]) == ("95", "20")


def test_an_advisory_decision_says_what_auto_would_have_done():
    (decision,) = decide(TESTING, look(WORSE, policy=Mode.ADVISORY)).decisions
    assert (decision.from_, decision.to, decision.advisory) == ("fp8_e4m3, 5% bf16", "bf16", True)
    assert decision.message.endswith("Not done: the policy is Advisory.")


def test_a_hold_names_the_room():
    (decision,) = decide(TESTING, look(WORSE, room=SHORT)).decisions
    assert decision.remedy is Remedy.HOLD
    assert "takes 120% of the pool and 90% are allowed" in decision.message


FACTS = {
    "normal": (NORMAL, {}, ConditionStatus.FALSE, Reason.AS_EXPECTED),
    "testing": (TESTING, {}, ConditionStatus.FALSE, Reason.AS_EXPECTED),
    "held": (HELD, {"room": SHORT}, ConditionStatus.UNKNOWN, Reason.INSUFFICIENT_CAPACITY),
    "fallback": (FALLBACK, {}, ConditionStatus.TRUE, Reason.DIFFERENCE_CONFIRMED),
    "a damaged family": (FAMILY, {"family": FAMILIES[0]}, ConditionStatus.TRUE, Reason.KNOWN_FAMILY),
    "probing": (PROBING, {}, ConditionStatus.TRUE, Reason.PRECISION_PROBING),
    "latched": (LATCHED, {}, ConditionStatus.TRUE, Reason.PRECISION_LATCHED),
    "off": (LATCHED, {"policy": Mode.OFF}, ConditionStatus.FALSE, Reason.NOT_CONFIGURED),
    "advisory": (NORMAL, {"policy": Mode.ADVISORY}, ConditionStatus.FALSE, Reason.AS_EXPECTED),
    "an engine in the fallback": (NORMAL, {"engine": BF16}, ConditionStatus.FALSE, Reason.NOT_CONFIGURED),
}


@pytest.mark.parametrize("case", FACTS.values(), ids=FACTS.keys())
def test_what_is_said_about_the_condition(case):
    before, changes, status, reason = case
    fact = decide(before, look({}, **changes)).fact
    assert (fact.status, fact.reason) == (status, reason)
    assert "{" not in fact.message


NEXT = {
    "normal": (NORMAL, {}, "Once more than 0.05 of its answers in fp8_e4m3 miss their schema"),
    "resting": (replace(NORMAL, tests=1, since_test=3_000), {}, "It is not tested again for up to 5000 more answers."),
    "testing": (TESTING, {}, "ends the comparison after 2000 answers at the latest"),
    "held": (HELD, {"room": SHORT}, "It moves to bf16 as soon as there is room"),
    "fallback": (FALLBACK, {}, "fp8_e4m3 is tried again with few requests 30m after the move."),
    "a damaged family": (FAMILY, {}, "sets the annotation pagefleet.io/reset-precision, such as to 'tools 1'."),
    "probing": (PROBING, {}, "It returns to fp8_e4m3 if the probes are clean"),
    "latched": (LATCHED, {}, "pagefleet.io/reset-precision to the route's name and a new text, such as 'tools 1'."),
    "off": (LATCHED, {"policy": Mode.OFF}, "Nothing changes while kvPrecision.policy is Off."),
    "advisory": (LATCHED, {"policy": Mode.ADVISORY}, "under Auto it goes on as Latched."),
    "an engine in the fallback": (NORMAL, {"engine": BF16}, "Nothing changes: the engine runs in bf16"),
}


@pytest.mark.parametrize("case", NEXT.values(), ids=NEXT.keys())
def test_what_is_said_about_what_comes_next(case):
    before, changes, words = case
    said = decide(before, look({}, **changes)).what_next
    assert words in said
    assert "{" not in said


def test_a_reset_forgets_the_latch_and_the_family():
    fresh = reset(LATCHED, at(5))
    assert fresh == Memory(state=RouteState.NORMAL, cause=Cause.RESET, since=at(5))
    after = decide(fresh, look(GOOD_LOOK, 6, family=FAMILIES[0])).memory
    assert (after.state, after.window.total) == (
        RouteState.NORMAL,
        Arms(engine=Tally(valid=95), control=Tally(valid=5)),
    )


def test_the_whole_story():
    seen, now, told = Memory(), 0.0, []
    for counts, pause in (
        (GOOD_LOOK, 5), (BAD_LOOK, 5), (WORSE, 5), (WORSE, 5), ({}, 1_800), (CLEAN_PROBES, 5), (CLEAN_PROBES, 5),
    ):  # fmt: skip
        now += pause
        answer = decide(seen, look(counts, now))
        seen, told = answer.memory, told + [(decision.reason, decision.to) for decision in answer.decisions]
    assert told == [
        ("SchemaFailureRateAboveBound", "fp8_e4m3, 50% bf16"),
        ("DifferenceConfirmed", "bf16"),
        ("QuietPeriodOver", "fp8_e4m3, 90% bf16"),
        ("ProbeClean", "fp8_e4m3, 5% bf16"),
    ]

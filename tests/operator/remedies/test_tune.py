"""The rules of tuning, one sentence each: what is cut, what is raised, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.engine_spec import MaxNumSeqs
from pagefleet_operator.api.status import LLMServiceStatus, PodState, PodStatus, TuningStatus
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.fleet import StartingPod
from pagefleet_operator.remedies.memory import Canary, LengthMemory, Turns, rebuild_memory
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Invalid, Missing
from tests.operator.remedies.fleets import NOW, known, pod, view

R, H = RemedyReason, HoldReason
SWAPS = {Metric.SWAPS: 3, Metric.PREEMPTIONS: 3}
FULL = {"running": 32, "kv": 0.99}
QUEUE = {"running": 16, "waiting": 5, "kv": 0.5}
CAPPED = QUEUE | {"cap": 16}


def changes(outlook):
    return [(each.subject, each.from_, each.to, each.reason) for each in outlook.decisions]


def holds(outlook):
    return [(hold.subject, hold.reason) for hold in outlook.holds]


def one(cap, *, tuning="Auto", memory=None, spec=None, length=None, targets=None, since=NOW - 1000, **shown):
    """One look at one pod `a` with a desired cap."""
    gauges = {"cap": cap} | shown
    subject = pod(**gauges)
    remembered = known(subject, caps=[cap], changed_s=since, **(memory or {}))
    scaling = None if targets is None else {"maxReplicas": 1}
    return look(view(subject, tuning=tuning, cap=spec, length=length, targets=targets, scaling=scaling), remembered)


CUTS = {
    "new swaps cut to three quarters of the running": (
        {"cap": 32, "running": 24, "new": SWAPS},
        [("a", "32", "18", R.REQUESTS_SWAPPED)],
    ),
    "preemptions alone are enough": (
        {"cap": 32, "running": 24, "new": {Metric.PREEMPTIONS: 1}},
        [("a", "32", "18", R.REQUESTS_SWAPPED)],
    ),
    "one counter that is not known does not hide the other": (
        {"cap": 32, "running": 24, "new": {Metric.PREEMPTIONS: Invalid("it is nan"), Metric.SWAPS: 1}},
        [("a", "32", "18", R.REQUESTS_SWAPPED)],
    ),
    "the cut follows the number running, not the old cap": (
        {"cap": 32, "running": 8, "new": SWAPS},
        [("a", "32", "6", R.REQUESTS_SWAPPED)],
    ),
    "never below min": ({"cap": 32, "running": 5, "new": SWAPS}, [("a", "32", "4", R.REQUESTS_SWAPPED)]),
    "old swaps are no reason": ({"cap": 32, "running": 24, "before": SWAPS}, []),
    "requests that are still swapped are no reason": ({"cap": 32, "running": 24, "swapped": 7}, []),
    "a high KV use alone is no reason": ({"cap": 32, "running": 32, "kv": 1.0}, []),
}


@pytest.mark.parametrize(("shown", "want"), CUTS.values(), ids=CUTS.keys())
def test_cuts(shown, want):
    shown = dict(shown)
    if "before" in shown:
        shown["before"] = {metric: 0 for metric in shown["before"]}
    assert changes(one(shown.pop("cap"), **shown)) == want


def test_a_cut_says_its_numbers():
    outlook = one(32, running=24, waiting=2, kv=0.98, new=SWAPS)
    (decision,) = outlook.decisions
    want = (
        "3 requests were swapped out in the last 5 s with 24 running: the cap of a goes from 32 to 18 "
        "(0.75 of the running)"
    )
    assert decision.message == want
    assert decision.measurements == {
        "running": "24",
        "waiting": "2",
        "swapped": "0",
        "kvUsage": "0.98",
        "preemptions": "3",
        "swaps": "3",
    }
    assert outlook.caps == {"a": 18}


def test_all_pods_under_pressure_are_cut_and_no_other():
    pods = [pod("a", running=24, new=SWAPS), pod("b", running=24), pod("c", running=16, new=SWAPS)]
    outlook = look(view(*pods), known(*pods, caps=[32, 32, 32]))
    assert outlook.caps == {"a": 18, "b": 32, "c": 12}
    assert outlook.start_cap == 18


def test_after_a_cut_nothing_more_until_the_running_fit():
    settling = {"cut": True, "settling": True}
    waits = one(18, running=22, new=SWAPS, memory=settling, since=NOW - 5)
    assert (changes(waits), holds(waits)) == ([], [("a", H.CAP_SETTLING)])
    # the look that sees them fit counted swaps from before: only the next one may cut again
    through = one(18, running=18, new=SWAPS, memory=settling, since=NOW - 10)
    assert changes(through) == []
    again = pod(cap=18, running=16, new=SWAPS)
    assert changes(look(view(again), through.memory)) == [("a", "18", "12", R.REQUESTS_SWAPPED)]


SLOW = {"targets": {"interTokenLatency": "100ms"}, "inter_token_s": 0.4}
ITL = {
    "slow tokens with a full cap cut": ({"running": 32} | SLOW, [("a", "32", "24", R.TOKENS_TOO_SLOW)]),
    "slow tokens below the cap are not the cap's doing": ({"running": 20} | SLOW, []),
    "within the tolerance nothing is cut": ({"running": 32} | SLOW | {"inter_token_s": 0.1}, []),
    "without a target nobody looks": ({"running": 32, "inter_token_s": 0.4}, []),
    "not sooner than a window after the last change": ({"running": 32, "since": NOW - 30} | SLOW, []),
    "not from half a window": ({"running": 32, "looks": 8} | SLOW, []),
}


@pytest.mark.parametrize(("shown", "want"), ITL.values(), ids=ITL.keys())
def test_slow_tokens(shown, want):
    assert changes(one(32, **shown)) == want


RAISES = {
    "a queue and room raise by a sixteenth of max": (QUEUE, [("a", "16", "18", R.QUEUE_WITH_ROOM)]),
    "without a queue nothing is raised": (QUEUE | {"waiting": 0}, []),
    "a queue that is gone in one look is none": (QUEUE | {"last": {"waiting": 0}}, []),
    "a pool that the raise would fill forbids it": (QUEUE | {"kv": 0.85}, []),
    "a cap that is not reached is not what keeps them waiting": (QUEUE | {"running": 10}, []),
    "swapped requests come first": (QUEUE | {"swapped": 1}, []),
    "not sooner than the interval": (QUEUE | {"since": NOW - 20}, []),
    "half a window is no window": (QUEUE | {"looks": 8}, []),
    "after a cut a whole window must be calm": (QUEUE | {"since": NOW - 50, "memory": {"cut": True}}, []),
    "and then it may": (
        QUEUE | {"since": NOW - 60, "memory": {"cut": True}},
        [("a", "16", "18", R.QUEUE_WITH_ROOM)],
    ),
    "tokens that are near their target forbid it": (
        QUEUE | {"targets": {"interTokenLatency": "100ms"}, "inter_token_s": 0.1},
        [],
    ),
    "tokens in time allow it": (
        QUEUE | {"targets": {"interTokenLatency": "100ms"}, "inter_token_s": 0.01},
        [("a", "16", "18", R.QUEUE_WITH_ROOM)],
    ),
    "never above what the engine was started for": (QUEUE | {"capacity": 16}, []),
}


@pytest.mark.parametrize(("shown", "want"), RAISES.values(), ids=RAISES.keys())
def test_raises(shown, want):
    assert changes(one(16, spec=MaxNumSeqs(min=4, max=32, initial=8), **shown)) == want


def test_a_pod_that_crashed_after_a_cut_keeps_nobody_from_a_raise():
    waiting, crashed = pod("a", **CAPPED), pod("b", cap=8, running=12)
    remembered = known(waiting, crashed, caps=[16, 8])
    caps = remembered.tune.caps | {"b": replace(remembered.tune.caps["b"], settling=True)}
    remembered = replace(remembered, tune=replace(remembered.tune, caps=caps))
    seen = view(waiting, replicas=2, starting=(StartingPod(name="b", age_s=20.0),))
    assert changes(look(seen, remembered)) == [("a", "16", "18", R.QUEUE_WITH_ROOM)]
    assert changes(look(view(waiting, crashed), remembered)) == [], "a pod that serves is waited for"


def test_the_rest_follow_when_the_canary_has_held_for_a_window():
    pods = [pod("a", **CAPPED), pod("b", **CAPPED)]
    first = look(view(*pods), known(*pods, caps=[16, 16]))
    assert changes(first) == [("a", "16", "18", R.QUEUE_WITH_ROOM)]
    for later, want in ((55, []), (60, [("b", "16", "18", R.CANARY_HELD)])):
        now = NOW + later
        pods = [pod("a", now=now, **(QUEUE | {"cap": 18, "running": 18})), pod("b", now=now, **CAPPED)]
        assert changes(look(view(*pods, now=now), first.memory)) == want


def test_a_canary_that_meets_pressure_goes_back_and_nobody_follows():
    pods = [pod("a", cap=18, running=18, new=SWAPS), pod("b", **CAPPED)]
    memory = known(*pods, caps=[18, 16])
    raised = replace(memory.tune.caps["a"], changed_s=NOW - 70, last_good=16, turns=Turns(rising=True))
    tune = replace(
        memory.tune,
        caps=memory.tune.caps | {"a": raised},
        canary=Canary(pod="a", cap=18, since_s=NOW - 70),
    )
    outlook = look(view(*pods), replace(memory, tune=tune))
    assert changes(outlook) == [("a", "18", "16", R.LAST_GOOD_RESTORED)]
    assert outlook.memory.tune.canary is None
    assert outlook.memory.tune.caps["a"].turns == Turns(rising=False, at_s=(NOW,), failures=1)


def test_a_cap_that_turned_twice_waits_an_hour_and_longer_after_harm():
    spec = MaxNumSeqs(min=4, max=32, initial=8)
    for failures, wait in ((0, 3600), (1, 7200), (9, 8 * 3600)):
        for ago, want in ((wait - 5, []), (wait, [("a", "16", "18", R.QUEUE_WITH_ROOM)])):
            turns = Turns(rising=False, at_s=(NOW - ago - 100, NOW - ago), failures=failures)
            outlook = one(16, spec=spec, memory={"turns": turns}, **QUEUE)
            assert changes(outlook) == want
            assert holds(outlook) == ([] if want else [("a", H.TURNED_RECENTLY)])


QUIET = {
    "a learned cap goes back after a long quiet time": (
        {"running": 0, "kv": 0.0},
        [("a", "16", "32", R.QUIET_AGAIN)],
    ),
    "as far as the pool would hold what runs": ({"running": 4, "kv": 0.2}, [("a", "16", "18", R.QUIET_AGAIN)]),
    "and not at all when that is no more": ({"running": 4, "kv": 0.22}, []),
    "no higher than engines start with": ({"running": 0, "kv": 0.0, "spec": MaxNumSeqs(max=32, initial=16)}, []),
}


@pytest.mark.parametrize(("shown", "want"), QUIET.values(), ids=QUIET.keys())
def test_the_way_back(shown, want):
    assert changes(one(16, **shown)) == want


def test_a_restarted_engine_gets_its_cap_again_and_that_is_no_turn():
    before = pod(cap=18)
    memory = known(before, caps=[18], turns=Turns(rising=False))
    after = pod(cap=32, restarts=1, looks=1)
    outlook = look(view(after), memory)
    assert changes(outlook) == [("a", "32", "18", R.CAP_REAPPLIED)]
    assert outlook.caps == {"a": 18}
    assert outlook.memory.tune.caps["a"].turns == Turns(rising=False)
    assert changes(look(view(after), outlook.memory)) == [], "said once"


def test_an_engine_that_reports_another_cap_is_given_time_to_take_it():
    for ago, want in ((10, []), (20, [("a", "32", "18", R.CAP_REAPPLIED)])):
        subject = pod(cap=32)
        assert changes(look(view(subject), known(subject, caps=[18], changed_s=NOW - ago))) == want


def test_moved_bounds_are_kept_at_once():
    assert changes(one(32, spec=MaxNumSeqs(min=4, max=24))) == [("a", "32", "24", R.OUT_OF_BOUNDS)]
    assert changes(one(8, spec=MaxNumSeqs(min=12, max=32))) == [("a", "8", "12", R.OUT_OF_BOUNDS)]


RESTORED = {
    "an engine that ran on is believed": (0, 24, 24),
    "an engine that was restarted meanwhile gets the status' cap": (1, 32, 18),
    "an engine that cannot be read gets the status' cap": (0, Missing("x"), 18),
}


@pytest.mark.parametrize(("restarts", "reported", "want"), RESTORED.values(), ids=RESTORED.keys())
def test_after_a_restart_of_the_operator(restarts, reported, want):
    status = LLMServiceStatus(
        tuning=TuningStatus(max_num_seqs=18),
        pods=(PodStatus(name="a", state=PodState.SERVING, max_num_seqs=18),),
    )
    outlook = look(view(pod(cap=reported, restarts=restarts, looks=1)), rebuild_memory(status))
    assert outlook.caps == {"a": want}
    assert outlook.decisions == ()


BAD = [Missing("it was not sent"), Invalid("it is nan")]


@pytest.mark.parametrize("bad", BAD, ids=["missing", "invalid"])
@pytest.mark.parametrize("name", ["running", "waiting", "swapped", "kv"])
def test_no_raise_without_every_sample(name, bad):
    assert changes(one(16, spec=MaxNumSeqs(min=4, max=32, initial=8), **(QUEUE | {name: bad}))) == []


@pytest.mark.parametrize("bad", BAD, ids=["missing", "invalid"])
def test_unknown_pressure_holds_and_names_the_pod(bad):
    outlook = one(32, running=24, new={Metric.PREEMPTIONS: bad, Metric.SWAPS: bad})
    reason = H.METRICS_MISSING if isinstance(bad, Missing) else H.METRICS_INVALID
    assert (changes(outlook), holds(outlook)) == ([], [("a", reason)])
    assert "a: its vllm:num_preemptions_total" in outlook.holds[0].message


def test_stale_samples_hold():
    subject = pod(running=24, new=SWAPS, now=NOW - 20)
    outlook = look(view(subject), known(subject, caps=[32]))
    assert (changes(outlook), holds(outlook)) == ([], [("a", H.METRICS_STALE)])


LENGTH = {
    "at the minimum and still swapping, new requests get shorter": ({}, [(None, "4096", "3072", R.LENGTH_LOWERED)]),
    "only when the spec says so": ({"length": None}, []),
    "never below its own minimum": ({"length": {"min": 4000}}, [(None, "4096", "4000", R.LENGTH_LOWERED)]),
    "a length to return to must be known": ({"max_model_len": None}, []),
    "slow tokens do not shorten requests": ({"new": {}} | SLOW | {"running": 4}, []),
}


@pytest.mark.parametrize(("given", "want"), LENGTH.values(), ids=LENGTH.keys())
def test_the_length_remedy(given, want):
    shown = {"running": 4, "cap": 4, "new": SWAPS} | given
    rules = {name: shown.pop(name) for name in ("length", "max_model_len", "targets") if name in shown}
    subject = pod(**shown)
    rules = {"length": {"min": 1024}, "scaling": {"maxReplicas": 1}} | rules
    outlook = look(view(subject, **rules), known(subject, caps=[4]))
    assert changes(outlook) == want
    assert outlook.max_model_len == (int(want[0][2]) if want else None)


def test_the_length_comes_back_after_a_long_time_without_swapping():
    subject = pod(cap=4, running=4, waiting=3, length=3072)
    for ago, want in ((290, []), (300, [(None, "3072", "4096", R.LENGTH_RESTORED)])):
        memory = known(subject, caps=[4])
        length = LengthMemory(desired=3072, changed_s=NOW - ago, turns=Turns(rising=False))
        memory = replace(memory, tune=replace(memory.tune, length=length))
        assert changes(look(view(subject, length={"min": 1024}), memory)) == want


def test_advice_changes_nothing_and_is_not_repeated_at_once():
    subject = pod(cap=32, running=24, new=SWAPS)
    first = look(view(subject, tuning="Advisory"), known(subject, caps=[32]))
    assert [(each.reason, each.advisory) for each in first.decisions] == [(R.REQUESTS_SWAPPED, True)]
    assert (first.caps, first.start_cap, first.max_model_len) == ({}, None, None)
    assert look(view(subject, tuning="Advisory"), first.memory).decisions == ()


def test_off_leaves_everything_alone():
    subject = pod(cap=32, running=24, new=SWAPS)
    outlook = look(view(subject, tuning="Off"), known(subject, caps=[32]))
    assert (outlook.decisions, outlook.caps, outlook.start_cap) == ((), {}, None)


def test_a_paused_service_is_left_alone():
    subject = pod(cap=32, running=24, new=SWAPS)
    outlook = look(view(subject, paused=True), known(subject, caps=[32]))
    assert (outlook.decisions, outlook.caps) == ((), {})

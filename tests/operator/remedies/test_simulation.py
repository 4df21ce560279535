"""Whole fleets in simulated time: the stories, the bounds, rest, bad samples, restarts, clocks."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.engine_spec import MaxNumSeqs
from pagefleet_operator.api.remedy_spec import AutoscalingSpec, TuningSpec
from pagefleet_operator.api.status import LLMServiceStatus, PodState, PodStatus, TuningStatus
from pagefleet_operator.remedies.memory import rebuild_memory
from pagefleet_operator.remedies.readings import ScrapeFailed
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.samples import Invalid, Missing, Value
from pagefleet_operator.remedies.what_next import what_next
from tests.operator.remedies.simulate_remedies import SMALL_POOL, most_turns, simulate
from tests.operator.remedies.simulator import EPOCH, Hardware, Load, Simulation, noisy

R, H = RemedyReason, HoldReason
BEGIN = 1000.0
HISTORIES = int(os.environ.get("HISTORIES", "20"))
"""Random histories of faults; `make histories` runs thousands."""


def rush(now_s):
    """Calm, 18 minutes of too much, then nothing."""
    return 0.1 if now_s - BEGIN < 120 else 3.0 if now_s - BEGIN < 1200 else 0.0


def story(**changes):
    """A pool too small for its load."""
    scaling = AutoscalingSpec(min_replicas=1, max_replicas=2)
    given = {"load": Load(rate=rush), "hardware": SMALL_POOL, "autoscaling": scaling, "seed": 1}
    return Simulation(**(given | changes))


def test_the_pressure_story_in_the_order_in_which_it_is_told():
    simulation = story().run(3600)
    assert simulation.reasons() == [
        R.REQUESTS_SWAPPED,  # the cap goes down until swapping stops
        R.QUEUE_ABOVE_TARGET,  # the queue grows, a replica comes
        R.QUIET_AGAIN,  # the load ends, the cap comes back on one pod
        R.CANARY_HELD,  # and on the other
        R.REPLICA_NOT_NEEDED,
    ]
    assert (simulation.replicas, [engine.cap for engine in simulation.engines]) == (1, [32])
    assert sum(engine.counters[Metric.REFUSED] for engine in simulation.engines) == 0


def test_the_cut_follows_the_first_swap_within_one_look():
    simulation = story()
    while not simulation.engines[0].counters[Metric.SWAPS]:
        simulation.run(1)
    swapped_s = simulation.now_s
    simulation.run(10)
    assert simulation.moments[0].decision.reason == R.REQUESTS_SWAPPED
    assert BEGIN + simulation.moments[0].at_s - swapped_s <= 5


def restarted(simulation):
    """What the operator knows after a restart: its last status, where caps are as they were reported, and no window."""
    pods = tuple(
        PodStatus(name=name, state=PodState.SERVING, max_num_seqs=cap, restarts=restarts)
        for name, (cap, restarts) in simulation.caps_in_status.items()
    )
    tuning = TuningStatus(max_num_seqs=simulation.start_cap)
    simulation.windows = {}
    simulation.start_setter()
    simulation.memory = rebuild_memory(LLMServiceStatus(tuning=tuning, pods=pods))


@pytest.mark.parametrize("at_s", [150, 400, 1000, 1400, 1800])
def test_a_restart_of_the_operator_changes_nothing_in_how_the_story_ends(at_s):
    simulation = story().run(at_s)
    before = (simulation.replicas, [engine.cap for engine in simulation.ready()])
    restarted(simulation)
    simulation.run(5)
    assert (simulation.replicas, [engine.cap for engine in simulation.ready()]) == before
    simulation.run(7200 - at_s)
    assert (simulation.replicas, [engine.cap for engine in simulation.engines]) == (1, [32])
    assert most_turns(simulation.moments) <= 2


def test_an_engine_that_restarts_gets_its_cap_back_in_the_next_look():
    simulation = story().run(900)
    engine = simulation.ready()[0]
    learned = engine.cap
    assert learned < 32
    engine.restart(cap=32)
    simulation.run(5)
    assert engine.cap == learned
    assert simulation.moments[-1].decision.reason == R.CAP_REAPPLIED


@pytest.mark.parametrize("seed", range(10))
def test_nothing_oscillates_under_noise(seed):
    assert simulate(seed, hours=1.1).turns <= 2


RESTS = {"no load": 0.0, "light load": 0.5, "a load that one pod holds": 1.0}


@pytest.mark.parametrize("rate", RESTS.values(), ids=RESTS.keys())
def test_rest_is_reached_and_nothing_follows(rate):
    simulation = Simulation(load=Load(rate=lambda now_s: rate), hardware=Hardware(load_s=60), seed=2).run(1200)
    decided = len(simulation.moments)
    simulation.run(1800)
    assert len(simulation.moments) == decided
    again = simulation.outlook
    assert (again.decisions, again.replicas) == ((), simulation.replicas)


def test_no_second_replica_for_the_same_demand_while_a_model_loads_for_five_minutes():
    step = Load(rate=lambda now_s: 0.2 if now_s - BEGIN < 120 else 2.2)
    scaling = AutoscalingSpec(min_replicas=1, max_replicas=8)
    hardware = Hardware(tokens_per_s=350.0, load_s=300)
    simulation = Simulation(load=step, hardware=hardware, autoscaling=scaling, tuning=TuningSpec(mode="Off"), seed=3)
    simulation.run(1500)
    ups = [moment.at_s for moment in simulation.moments if int(moment.decision.to) > int(moment.decision.from_)]
    assert len(ups) >= 1
    assert all(later - earlier >= 300 + 60 for earlier, later in pairwise(ups))


def bad(sample, *metrics):
    """Scrapes in which these metrics are not values."""

    def scrape(engine, now_s):
        shown = engine.readings()
        gauges = {metric: sample if metric in metrics else value for metric, value in shown.gauges.items()}
        counters = {metric: sample if metric in metrics else value for metric, value in shown.counters.items()}
        return replace(shown, gauges=gauges, counters=counters)

    return scrape


EVERYTHING = tuple(Metric)
BLACKOUTS = {
    "no answer": lambda engine, now_s: ScrapeFailed("connection refused"),
    "everything missing": bad(Missing("x"), *EVERYTHING),
    "everything invalid": bad(Invalid("x"), *EVERYTHING),
    "a frozen answer": None,
    "running missing": bad(Missing("x"), Metric.REQUESTS_RUNNING),
    "waiting invalid": bad(Invalid("x"), Metric.REQUESTS_WAITING),
    "KV use missing": bad(Missing("x"), Metric.KV_CACHE_USAGE),
    "swaps and preemptions missing": bad(Missing("x"), Metric.SWAPS, Metric.PREEMPTIONS),
}


@pytest.mark.parametrize("scrape", BLACKOUTS.values(), ids=BLACKOUTS.keys())
def test_without_data_nothing_moves_and_afterwards_a_whole_window_is_waited_for(scrape):
    load = Load(rate=lambda now_s: 3.0 if now_s - BEGIN < 900 else 0.3)
    simulation = story(load=load).run(900)
    before = (simulation.replicas, [engine.cap for engine in simulation.ready()])
    assert before[0] == 2
    if scrape is None:
        frozen = {engine.name: engine.readings() for engine in simulation.ready()}

        def scrape(engine, now_s):
            return frozen[engine.name]

    honest, simulation.scrape = simulation.scrape, scrape
    simulation.run(1800)
    assert (simulation.replicas, [engine.cap for engine in simulation.ready()]) == before
    assert {hold.reason for hold in simulation.outlook.holds} & {
        *(H.METRICS_MISSING, H.METRICS_INVALID, H.METRICS_STALE),
    }
    simulation.scrape = honest
    simulation.run(290)
    assert simulation.replicas == 2
    simulation.run(900)
    assert simulation.replicas == 1


JUMPS = {"forward": 3600, "back": -3600}


@pytest.mark.parametrize("jump_s", JUMPS.values(), ids=JUMPS.keys())
def test_a_jump_of_the_wall_clock_changes_only_what_is_written_down(jump_s):
    def jumping(now_s):
        return EPOCH + timedelta(seconds=now_s + (jump_s if now_s > BEGIN + 500 else 0))

    def told(simulation):
        return [(moment.at_s, moment.decision.reason, moment.decision.to) for moment in simulation.moments]

    assert told(story(wall=jumping).run(2400)) == told(story().run(2400))


def test_the_length_remedy_comes_last_and_goes_back():
    load = Load(rate=lambda now_s: 2.0 if now_s - BEGIN < 600 else 0.0, prompt=(900, 1200), answer=(900, 1200))
    simulation = story(
        load=load,
        cap=MaxNumSeqs(min=4, max=8),
        tuning=TuningSpec.model_validate({"mode": "Auto", "maxModelLen": {"min": 1024}}),
        autoscaling=AutoscalingSpec(min_replicas=1, max_replicas=1),
    ).run(4800)
    found = [moment.decision.reason for moment in simulation.moments]
    lowered = found.index(R.LENGTH_LOWERED)
    assert simulation.moments[lowered - 1].decision.to == "4", "the cap was at its minimum"
    assert R.LENGTH_RESTORED in found[lowered:]
    assert simulation.outlook.max_model_len == 4096
    assert most_turns(simulation.moments) <= 2


bounds = st.tuples(st.integers(1, 8), st.integers(0, 24), st.integers(0, 8)).map(
    lambda drawn: MaxNumSeqs(
        min=drawn[0], initial=min(drawn[0] + drawn[2], drawn[0] + drawn[1]), max=drawn[0] + drawn[1]
    )
)
scalings = st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 120), st.integers(0, 60)).map(
    lambda drawn: AutoscalingSpec.model_validate(
        {
            "minReplicas": drawn[0],
            "maxReplicas": drawn[0] + drawn[1],
            "targets": {"timeToFirstToken": "2s", "interTokenLatency": "100ms"},
            "behavior": {
                "scaleDown": {"stabilizationWindowSeconds": drawn[2]},
                "scaleUp": {"stabilizationWindowSeconds": drawn[3], "policies": [{"type": "Percent", "value": 100}]},
            },
        }
    )
)
tunings = st.sampled_from(
    [TuningSpec.model_validate({"mode": mode, "maxModelLen": {"min": 512}}) for mode in ("Auto", "Advisory", "Off")]
)
troubles = st.lists(
    st.sampled_from(["restart", "fail", "missing", "invalid", "zero", "operator", "honest", "capped"]), max_size=6
)


# Shrinking whole simulations takes minutes; the failing case says enough.
@settings(
    max_examples=HISTORIES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(
    pool=st.integers(3_000, 30_000),
    cap=bounds,
    scaling=scalings,
    tuning=tunings,
    rates=st.lists(st.floats(0, 8), min_size=1, max_size=6),
    history=troubles,
    seed=st.integers(0, 99),
)
def test_no_history_leaves_the_bounds(pool, cap, scaling, tuning, rates, history, seed):
    def rate(now_s):
        return rates[int((now_s - BEGIN) / 120) % len(rates)]

    simulation = Simulation(
        load=Load(rate=noisy(rate, 0.2, seed)),
        hardware=Hardware(pool_tokens=pool, load_s=30),
        cap=cap,
        autoscaling=scaling,
        tuning=tuning,
        seed=seed,
    )
    honest = simulation.scrape
    zeros = bad(Value(0.0), *EVERYTHING)
    scrapes = {"fail": BLACKOUTS["no answer"], "missing": bad(Missing("x"), *EVERYTHING), "honest": honest}
    scrapes |= {"invalid": bad(Invalid("x"), *EVERYTHING), "zero": zeros}

    def check(made):
        assert scaling.min_replicas <= made.replicas <= scaling.max_replicas
        for engine in made.ready():
            assert cap.min <= engine.cap <= cap.max
            assert 512 <= engine.max_model_len <= 4096
        assert all(cap.min <= wanted <= cap.max for wanted in made.outlook.caps.values())
        if made.scrape is honest:  # what is decided is in force after every look
            assert all(made.outlook.caps.get(engine.name, engine.cap) == engine.cap for engine in made.ready())
        assert all(each.message and each.reason for each in made.outlook.decisions)
        assert what_next(made.view(), made.memory)

    for event in ("honest", *history):
        if event in scrapes:
            simulation.scrape = scrapes[event]
        elif event == "operator":
            restarted(simulation)
        for engine in simulation.ready()[:1]:
            if event == "restart":
                engine.restart(cap=cap.initial_cap)
            elif event == "capped":
                engine.change(cap=cap.max, max_model_len=4096)
        simulation.run(150, check)

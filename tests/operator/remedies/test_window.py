"""Windows: increments across restarts, gaps, staleness, quantiles, and when a window is a whole one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.remedies.gains import quantile
from pagefleet_operator.remedies.readings import Buckets, ScrapeFailed
from pagefleet_operator.remedies.samples import Invalid, Missing, Stale, Value
from pagefleet_operator.remedies.window import EngineStart, open_window
from tests.operator.remedies.fleets import SETTINGS, readings

START = EngineStart("uid", 0)
RUNNING, SWAPS, ITL = Metric.REQUESTS_RUNNING, Metric.SWAPS, Metric.INTER_TOKEN_LATENCY
FAILED = ScrapeFailed("connection refused")


def swaps(count, **fields):
    return readings(counters={SWAPS: count}, **({"running": 0} | fields))


def window(*looks, start=START):
    """Looks of (moment, scrape) or (moment, scrape, start)."""
    made = open_window(start, SETTINGS)
    for moment, scrape, *other in looks:
        made = made.looked(float(moment), scrape, *(other or [start]))
    return made


NEW = {
    "the first look has nothing to compare with": ([(0, swaps(7))], None),
    "the increment since the last look": ([(0, swaps(7)), (5, swaps(9))], 2),
    "nothing new": ([(0, swaps(7)), (5, swaps(9)), (10, swaps(9))], 0),
    "a counter that fell began at 0 again": ([(0, swaps(7)), (5, swaps(3))], 3),
    "a restart that is known counts from 0 even above the old value": (
        [(0, swaps(7)), (5, swaps(9), EngineStart("uid", 1))],
        9,
    ),
    "a restart that its counters told of counts once": (
        [(0, swaps(70)), (5, swaps(3)), (10, swaps(4), EngineStart("uid", 1))],
        1,
    ),
    "another restart after that counts from 0 again": (
        [(0, swaps(70)), (5, swaps(3)), (10, swaps(4), EngineStart("uid", 1)), (15, swaps(9), EngineStart("uid", 2))],
        9,
    ),
    "a start that comes long after counters fell is another one": (
        [
            (0, swaps(70)),
            *((5 * number, swaps(3)) for number in range(1, 15)),
            (75, swaps(4), EngineStart("uid", 1)),
        ],
        4,
    ),
    "a look that failed has no increment": ([(0, swaps(7)), (5, swaps(9)), (10, FAILED)], None),
    "a short gap is bridged": ([(0, swaps(7)), (5, FAILED), (10, swaps(9))], 2),
    "a long gap is not": ([(0, swaps(7)), (20, swaps(9))], None),
    "a value that was invalid in between": ([(0, swaps(7)), (5, swaps(Invalid("x"))), (10, swaps(9))], None),
    "a look from the past changes nothing": ([(0, swaps(7)), (5, swaps(9)), (3, swaps(90))], 2),
}


@pytest.mark.parametrize(("looks", "want"), NEW.values(), ids=NEW.keys())
def test_what_is_new_since_the_last_look(looks, want):
    made = window(*looks)
    found = made.new(SWAPS, float(looks[-1][0]))
    assert found == Value(float(want)) if want is not None else not isinstance(found, Value)


def test_a_gauge_ages_and_says_why():
    made = window((0, readings(running=4)), (5, FAILED), (10, FAILED))
    assert made.gauge(RUNNING, 15.0) == Value(4.0)
    assert made.gauge(RUNNING, 16.0) == Stale(16.0, "connection refused")
    assert window((0, FAILED)).gauge(RUNNING, 0.0) == Missing("connection refused")


def test_an_engine_that_runs_requests_but_makes_no_steps_is_not_believed():
    made = window(*((5 * index, readings(running=4, steps=100)) for index in range(5)))
    assert made.gauge(RUNNING, 20.0) == Stale(20.0, "requests run, but the engine has made no step since")
    idle = window(*((5 * index, readings(running=0, steps=100)) for index in range(5)))
    assert idle.gauge(RUNNING, 20.0) == Value(0.0)


def test_a_window_is_whole_after_a_minute_without_a_gap():
    looks = [(5 * index, swaps(0)) for index in range(13)]
    assert not window(*looks[:12]).is_full(55.0)
    assert window(*looks).is_full(60.0)
    assert not window(*looks[:4], *[(moment + 60, scrape) for moment, scrape in looks[:12]]).is_full(115.0)


def test_a_restart_begins_a_new_window():
    looks = [(5 * index, swaps(50)) for index in range(20)]
    made = window(*looks, (100, swaps(2)))
    assert made.covered_s(100.0) == 0
    assert made.gained(SWAPS, 0.0) == Value(2.0)
    assert made.values(RUNNING, 0.0) == (Value(0.0),)


def test_old_looks_are_forgotten():
    made = window(*((5 * index, swaps(0)) for index in range(500)))
    assert len(made.looks) == 1 + (SETTINGS.window_s + SETTINGS.stale_after_s) / 5


def test_sums_and_means_are_unknown_as_soon_as_one_part_is():
    good = [(0, swaps(0, running=2)), (5, swaps(1, running=4)), (10, swaps(3, running=6))]
    made = window(*good)
    assert made.gained(SWAPS, 0.0) == Value(3.0)
    assert made.mean(RUNNING, 0.0) == Value(5.0)
    assert (made.lowest(RUNNING, -1.0), made.highest(RUNNING, -1.0)) == (Value(2.0), Value(6.0))
    bad = window(*good, (15, swaps(Invalid("x"), running=Missing("y"))))
    assert bad.gained(SWAPS, 0.0) == Invalid("x")
    assert bad.mean(RUNNING, 0.0) == Missing("y")


def latencies(*observed):
    scrapes = (readings(running=0, inter_token_s=0.05, observed=count) for count in observed)
    return [(5 * index, scrape) for index, scrape in enumerate(scrapes)]


def test_a_latency_needs_observations_but_none_at_all_is_known():
    assert window(*latencies(0, 30)).latency(ITL, 0.0) == Value(pytest.approx(0.0475))
    assert window(*latencies(0, 5)).latency(ITL, 0.0) == Missing("5 observations say nothing")
    assert window(*latencies(70, 70)).latency(ITL, 0.0) == Value(0.0)


INF = float("inf")
QUANTILES = {
    "linear inside its bucket": (Buckets((1.0, 2.0, INF), (0.0, 10.0, 10.0)), 0.5, 1.5),
    "in the first bucket from 0": (Buckets((1.0, INF), (10.0, 10.0)), 0.5, 0.5),
    "beyond the last bound it is the last bound": (Buckets((1.0, INF), (0.0, 10.0)), 0.9, 1.0),
    "empty buckets are passed over": (Buckets((1.0, 2.0, 4.0, INF), (5.0, 5.0, 10.0, 10.0)), 0.9, 3.6),
    "nothing was observed": (Buckets((1.0, INF), (0.0, 0.0)), 0.9, 0.0),
}


@pytest.mark.parametrize(("buckets", "share", "want"), QUANTILES.values(), ids=QUANTILES.keys())
def test_quantiles(buckets, share, want):
    assert quantile(buckets, share) == pytest.approx(want)


scrapes = st.one_of(
    st.integers(0, 50).map(swaps),
    st.just(FAILED),
    st.builds(lambda bad: swaps(bad, running=bad), st.sampled_from([Missing("m"), Invalid("i")])),
)


@given(st.lists(st.tuples(st.floats(-100, 100), scrapes, st.integers(0, 1)), max_size=40))
def test_any_history_gains_nothing_negative_and_stays_in_order(history):
    made, now = open_window(START, SETTINGS), 0.0
    for step, scrape, restarts in history:
        now = max(0.0, now + step)
        made = made.looked(now, scrape, EngineStart("uid", restarts))
        moments = [each.at_s for each in made.looks]
        assert moments == sorted(set(moments))
        for found in (made.new(SWAPS, now), made.gained(SWAPS, 0.0), made.gauge(RUNNING, now)):
            assert not isinstance(found, Value) or found.value >= 0
        made.latency(ITL, now - 60)

"""The promises of docs/precision-remedy.md on few routes; `make simulate-precision` is the long form."""

from __future__ import annotations

import math

import pytest

from pagefleet_operator.remedies.precision.limits import ALPHA, FORGET_AFTER, REST
from pagefleet_operator.remedies.precision.memory import Cause
from tests.operator.remedies.precision_route import Rates, same
from tests.operator.remedies.simulate_precision import WARM_UP, false_moves, probing, rise, upper_bound

BEFORE = same(0.02)


def test_the_tests_that_fit_into_100000_answers_may_be_wrong_with_one_percent_at_most():
    starts, answers = 1, 0
    for rest in (*REST, *[REST[-1]] * 5):
        answers += rest
        starts += answers < 100_000
    assert starts * ALPHA <= 0.01
    assert FORGET_AFTER >= 100_000


def most_moves(routes, rate, chance):
    """The most moves of so many routes that are not a sign of a higher rate: more have at most this chance."""
    below = 0.0
    for moves in range(routes + 1):
        below += math.comb(routes, moves) * rate**moves * (1 - rate) ** (routes - moves)
        if 1 - below <= chance:
            return moves
    raise AssertionError("the whole distribution is below")


def test_a_false_move_rate_of_ten_percent_would_be_seen():
    most = most_moves(200, 0.01, 0.005)
    assert most == 6
    unseen = sum(math.comb(200, moves) * 0.1**moves * 0.9 ** (200 - moves) for moves in range(most + 1))
    assert unseen < 0.001


# Below 5 % hardly a test begins, so that few routes say as much there.
@pytest.mark.parametrize(("rate", "routes"), [(0.0, 8), (0.01, 8), (0.02, 8), (0.05, 200), (0.10, 200), (0.20, 200)])
def test_equal_rates_move_one_route_in_a_hundred_at_most(rate, routes):
    runs = [false_moves((11, number), rate, 0.0, 100) for number in range(routes)]
    assert sum(run.moved_at is not None for run in runs) <= most_moves(routes, 0.01, 0.005)
    assert max(run.tests for run in runs) <= 4
    assert max(run.in_control / run.answers for run in runs if run.moved_at is None) < 0.12  # the tests' cost in BF16


def test_a_rise_in_fp8_alone_is_moved_within_1500_answers():
    runs = [rise((12, number), BEFORE, Rates(engine=0.08, control=0.02), 50) for number in range(100)]
    took = [run.moved_at - WARM_UP for run in runs if run.moved_at is not None]
    assert sum(0 < answers <= 1_500 for answers in took) >= 88


def test_a_rise_in_both_is_not_moved():
    runs = [rise((13, number), BEFORE, same(0.08), 50) for number in range(40)]
    assert [run.moved_at for run in runs] == [None] * 40


def test_truncations_move_a_route_only_where_the_control_has_fewer():
    before = same(0.02, 0.02)
    more = Rates(engine=0.02, control=0.02, engine_cut=0.4, control_cut=0.02)
    moved = [rise((14, number), before, more, 50).moved_at for number in range(20)]
    alike = [rise((15, number), before, same(0.02, 0.4), 50).moved_at for number in range(20)]
    assert None not in moved
    assert alike == [None] * 20


def test_probing_tells_clean_from_damaged():
    clean = [probing((16, number), same(0.01)).memory.cause for number in range(20)]
    damaged = [probing((17, number), Rates(engine=0.15, control=0.02)).memory.cause for number in range(20)]
    assert clean.count(Cause.PROBE_CLEAN) >= 19
    assert damaged.count(Cause.PROBE_FAILED) >= 19


def test_the_same_seed_gives_the_same_route():
    first, second = (rise((18, 1), BEFORE, Rates(engine=0.08, control=0.02), 10) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("hits", "trials", "want"), [(0, 1000, 0.00299), (1, 1000, 0.00473), (10, 1000, 0.01689)])
def test_the_upper_bound_is_clopper_and_pearsons(hits, trials, want):
    assert upper_bound(hits, trials) == pytest.approx(want, abs=2e-5)

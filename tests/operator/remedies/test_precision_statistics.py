"""The e-values by hand, and what the two stages make of tables whose answer is plain."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.remedies.precision.clean import is_clean, log_evidence
from pagefleet_operator.remedies.precision.counts import Arms, Tally, sort_into_arms
from pagefleet_operator.remedies.precision.difference import MIN_BLOCK, ODDS, SCHEMA_WEIGHT, Difference
from pagefleet_operator.remedies.precision.fisher import Block, log_e_values
from pagefleet_operator.remedies.precision.screen import Window, excess_truncations, is_above


def block(engine, engine_bad, control, control_bad):
    return Block(engine=engine, engine_bad=engine_bad, control=control, control_bad=control_bad)


def arms(engine=(0, 0, 0), control=(0, 0, 0)):
    names = ("valid", "failed", "truncated")
    return Arms(
        engine=Tally(**dict(zip(names, engine, strict=True))), control=Tally(**dict(zip(names, control, strict=True)))
    )


E_VALUES = {
    "one bad answer of two speaks 2w/(1+w), here 4/3": (block(1, 1, 1, 0), 2, Fraction(4, 3)),
    "the same in the control speaks 2/(1+w)": (block(1, 0, 1, 1), 2, Fraction(2, 3)),
    "two bad of four, both the engine's: 4 / ((1 + 4*2 + 4) / 6)": (block(2, 2, 2, 0), 2, Fraction(24, 13)),
    "one in each arm: 2 / ((1 + 4*2 + 4) / 6)": (block(2, 1, 2, 1), 2, Fraction(12, 13)),
    "both the control's: 1 / ((1 + 4*2 + 4) / 6)": (block(2, 0, 2, 2), 2, Fraction(6, 13)),
    "one bad answer of three, two of them the engine's: 3 / ((1 + 2*3) / 3)": (block(2, 1, 1, 0), 3, Fraction(9, 7)),
    "no bad answer says nothing": (block(9, 0, 5, 0), 3, Fraction(1)),
    "only bad answers say nothing": (block(3, 3, 4, 4), 3, Fraction(1)),
    "an arm without answers says nothing": (block(7, 4, 0, 0), 3, Fraction(1)),
}


@pytest.mark.parametrize("case", E_VALUES.values(), ids=E_VALUES.keys())
def test_the_e_value_of_one_block(case):
    table, ratio, want = case
    (log_e,) = log_e_values(table, (ratio,))
    assert math.exp(log_e) == pytest.approx(float(want), rel=1e-12)


@given(engine=st.integers(0, 30), control=st.integers(0, 30), bad=st.integers(0, 60), ratio=st.sampled_from(ODDS))
def test_the_mean_over_all_tables_with_the_same_margins_is_one(engine, control, bad, ratio):
    bad = min(bad, engine + control)
    total = math.comb(engine + control, bad)
    mean = sum(
        math.comb(engine, x)
        * math.comb(control, bad - x)
        / total
        * math.exp(log_e_values(block(engine, x, control, bad - x), (ratio,))[0])
        for x in range(max(0, bad - control), min(bad, engine) + 1)
    )
    assert mean == pytest.approx(1.0, rel=1e-9)


def test_a_block_of_many_thousand_answers_neither_overflows_nor_loses_its_sign():
    worse, equal = (log_e_values(block(50_000, bad, 50_000, 2_000), (2.0,))[0] for bad in (4_000, 2_000))
    assert 300 < worse < 400
    assert -250 < equal < -150


def test_a_block_counts_once_both_arms_have_enough_answers():
    few = arms((MIN_BLOCK - 2, 1, 0), (MIN_BLOCK - 1, 0, 0))
    one = arms((0, 1, 0), (1, 0, 0))
    assert Difference().add(few).schema.logs == (0.0,) * len(ODDS)
    closed = Difference().add(few).add(one)
    want = log_e_values(block(MIN_BLOCK, 2, MIN_BLOCK, 0), ODDS)
    assert closed.schema.logs == want


def test_the_evidence_is_the_weighted_mean_of_both_strands_over_all_odds():
    seen = Difference().add(arms((6, 2, 2), (10, 0, 0)))
    schema = [math.exp(log) for log in log_e_values(block(8, 2, 10, 0), ODDS)]
    truncation = [math.exp(log) for log in log_e_values(block(10, 2, 10, 0), ODDS)]
    want = (SCHEMA_WEIGHT * sum(schema) + (1 - SCHEMA_WEIGHT) * sum(truncation)) / len(ODDS)
    assert math.exp(seen.log_e) == pytest.approx(want, rel=1e-12)


def test_answers_are_passed_over_until_the_test_has_settled():
    waiting = Difference(settling=50).add(arms((20, 0, 0), (20, 0, 0)))
    assert waiting == Difference(settling=10)
    assert waiting.add(arms((0, 100, 0), (100, 0, 0))) == Difference()


CONCLUSIONS = {
    "80 of 500 against 20 of 500 failures is worse": (arms((420, 80, 0), (480, 20, 0)), True, False),
    "20 of 500 against 80 of 500 is equal: better is no reason to move": (
        arms((480, 20, 0), (420, 80, 0)),
        False,
        True,
    ),
    "100 of 500 in both is equal": (arms((400, 100, 0), (400, 100, 0)), False, True),
    "no failure at all concludes nothing": (arms((500, 0, 0), (500, 0, 0)), False, False),
    "150 truncated of 500 against 20 is worse": (arms((340, 10, 150), (470, 10, 20)), True, False),
    "as many truncated in both is no difference": (arms((300, 100, 100), (300, 100, 100)), False, True),
}


@pytest.mark.parametrize("case", CONCLUSIONS.values(), ids=CONCLUSIONS.keys())
def test_what_a_table_concludes(case):
    seen, worse, equal = case
    test = Difference().add(seen)
    assert (test.is_worse(0.0025), test.is_equal(0.05)) == (worse, equal)


def window(*chunks, size=500):
    result = Window()
    for chunk in chunks:
        result = result.add(chunk, size)
    return result


SCREENED = {
    "2 % of 500 is below a bound of 5 %": (window(arms((490, 10, 0))), False),
    "10 % of 200 is above": (window(arms((180, 20, 0))), True),
    "40 failures of 40 are fewer answers than minSamples": (window(arms((0, 40, 0))), False),
    "a rise at the end of the window shows": (window(*[arms((25, 0, 0))] * 16, *[arms((20, 5, 0))] * 4), True),
    "a rise that has passed does not": (window(*[arms((20, 5, 0))] * 4, *[arms((25, 0, 0))] * 16), False),
    "the control's failures are not looked at": (window(arms((480, 10, 0), (0, 100, 0))), False),
    "truncations as in the control are not counted": (window(arms((350, 7, 150), (35, 0, 15))), False),
    "truncations far above the control's are": (window(arms((350, 7, 150), (50, 0, 0))), True),
    "truncations without a control are not counted": (window(arms((350, 7, 150))), False),
}


@pytest.mark.parametrize("case", SCREENED.values(), ids=SCREENED.keys())
def test_the_first_stage(case):
    seen, want = case
    assert is_above(seen, 0.05, 50) is want


@pytest.mark.parametrize(("bound", "want"), [(0.0, True), (0.2, False), (1.0, False)])
def test_every_bound_of_the_spec_can_be_read(bound, want):
    assert is_above(window(arms((90, 10, 0))), bound, 50) is want


def test_the_window_forgets_what_is_older_than_its_size():
    seen = window(arms((0, 100, 0)), *[arms((100, 0, 0))] * 5)
    assert seen.total == arms((500, 0, 0))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300)), max_size=80))
def test_the_window_stays_small_and_holds_its_size(sizes):
    seen = window(*[arms((engine, 0, 0), (control, 0, cut)) for engine, control, cut in sizes])
    assert len(seen.chunks) <= 40
    assert seen.total.engine.answers >= min(500, sum(engine for engine, _, _ in sizes))


def test_truncations_are_in_excess_of_wilsons_upper_end():
    # 0 of 25: the upper end is z2 / (n + z2) = 6.25 / 31.25 = 0.2.
    assert excess_truncations(arms((0, 0, 100), (25, 0, 0))) == pytest.approx(80.0)


CLEAN = {
    "70 probes without a failure are not enough": (Tally(valid=70), False),
    "80 are": (Tally(valid=80), True),
    "400 with 8 failures are": (Tally(valid=392, failed=8), True),
    "400 at the bound are not": (Tally(valid=380, failed=20), False),
}


@pytest.mark.parametrize("case", CLEAN.values(), ids=CLEAN.keys())
def test_whether_probes_are_clean(case):
    probes, want = case
    assert is_clean(probes, 0.05, 0.05) is want


def test_the_evidence_of_one_clean_probe():
    want = ((1 - 0.005) / 0.95 + (1 - 0.02) / 0.95) / 2
    assert math.exp(log_evidence(Tally(valid=1), 0.05)) == pytest.approx(want, rel=1e-12)


def test_mixed_and_aborted_answers_and_negative_numbers_are_left_out():
    counts = {
        ("fp8_e4m3", "valid"): 5,
        ("fp8_e4m3", "invalid_json"): 1,
        ("fp8_e4m3", "schema_violation"): 2,
        ("fp8_e4m3", "truncated"): 3,
        ("fp8_e4m3", "aborted"): 100,
        ("bf16", "valid"): 7,
        ("bf16", "truncated"): -4,
        ("mixed", "invalid_json"): 50,
    }
    assert sort_into_arms(counts, engine="fp8_e4m3", fallback="bf16") == arms((5, 3, 3), (7, 0, 0))

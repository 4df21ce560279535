"""Which requests are controls: exactly the share of them, and by chance, whatever the clients' pattern is."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from random import Random

import pytest

from pagefleet_engine.server.control_share import ControlShare, block_size

# share → (requests of a block, controls in 10,000 requests)
SHARES = {
    0.0: (20, 0),
    0.05: (20, 500),
    0.1: (20, 1_000),
    0.25: (20, 2_500),
    0.5: (20, 5_000),
    0.29: (100, 2_900),
    0.001: (1_000, 10),
    0.0005: (1_000, 5),
    1 / 3: (1_000, 3_333),
    1.0: (20, 10_000),
}


@pytest.mark.parametrize(("share", "want"), SHARES.items())
def test_a_share_is_exact(share, want):
    control = ControlShare(share, Random(0))
    size = block_size(Fraction(repr(share)))
    blocks = [sum(control.next() for _ in range(size)) for _ in range(10_000 // size)]
    assert (size, sum(blocks)) == want
    exact = share * size
    assert all(abs(found - exact) < 1 for found in blocks)
    if exact.is_integer():
        assert set(blocks) == {exact}


def test_every_order_of_a_block_is_as_likely_as_any_other():
    """Two controls in 20 turns: 190 orders, each expected 50 times. The sum is chi-squared with 189 degrees."""
    control, orders = ControlShare(0.1, Random(1)), Counter()
    for _ in range(9_500):
        orders[tuple(turn for turn in range(20) if control.next())] += 1
    assert len(orders) == 190
    assert sum((count - 50) ** 2 / 50 for count in orders.values()) < 255  # exceeded once in 1,000


@pytest.mark.parametrize(("share", "period"), [*product([0.05, 0.25, 0.5], [2, 3, 4, 5, 10, 20])])
def test_no_period_of_a_client_meets_more_controls_than_another(share, period):
    control, num_requests = ControlShare(share, Random(2)), 12_000
    controls = Counter(i % period for i in range(num_requests) if control.next())
    expected = num_requests * share / period
    assert all(abs(controls[kind] - expected) < 4 * (expected * (1 - share)) ** 0.5 for kind in range(period))


def test_what_is_given_back_is_dealt_again():
    control = ControlShare(0.05, Random(3))
    for _ in range(500):
        control.give_back(control.next())
    assert sum(control.next() for _ in range(2_000)) == 100

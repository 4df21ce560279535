"""What status says of numbers that move all the time: the same, for as long as little changes."""

from datetime import timedelta

import pytest

from pagefleet_operator.remedies.coarse import about, clock, coarse_share
from pagefleet_operator.remedies.samples import Stale, explain
from pagefleet_operator.testing import START


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.2, "1"), (2, "2"), (2.1, "up to 5"), (5, "up to 5"), (6, "up to 10"), (99.5, "up to 100")],
)
def test_counts(value, text):
    assert about(value) == text


def test_shares_and_moments():
    assert [coarse_share(share) for share in (0.0, 0.376, 0.424, 1.0)] == [0.0, 0.4, 0.4, 1.0]
    moments = [clock(START + timedelta(seconds=passed), 3600 - passed) for passed in (0, 5, 3000, 4000)]
    assert moments == ["01:00 UTC"] * 4


def test_what_is_too_old_says_the_same_as_it_grows_older():
    assert explain(Stale(16.0, "no answer")) == explain(Stale(600.0, "no answer")) == "is too old: no answer"

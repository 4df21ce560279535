"""`make measure-reaction` fails when it should: the target is a median, and it is part of the target."""

import pytest

from e2e.stories.reaction import report


@pytest.mark.parametrize(("times", "code", "median"), [([9.0, 5.0, 1.0], 0, "5.0"), ([6.0, 5.1, 0.4], 1, "5.1")])
def test_the_exit_code_follows_the_median(times, code, median, capsys):
    assert report(times) == code
    told = " ".join(f"{seconds:.1f}" for seconds in sorted(times))
    printed = f"\nseconds from the first swap to the lower cap: {told}\nmedian {median} s (target: 5 s at most)\n"
    assert capsys.readouterr().out == printed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.scheduling.testing import TinyLayout

SIZES = GroupSizes(TinyLayout())

# With blocks of 4: BF16 groups have 4 tokens, FP8 8, INT8 7, INT4 14.
FRAMES = {
    "no token takes no frame": (0, Precision.BF16, 0, 0),
    "one BF16 token takes one open frame": (1, Precision.BF16, 1, 1),
    "a full BF16 group takes the frame it was written in": (4, Precision.BF16, 1, 1),
    "seven FP8 tokens lie in two open frames": (7, Precision.FP8_E4M3, 2, 2),
    "the eighth FP8 token halves them": (8, Precision.FP8_E4M3, 1, 2),
    "thirteen INT4 tokens lie in four open frames": (13, Precision.INT4, 4, 4),
    "twenty INT4 tokens lie in one sealed and two open frames": (20, Precision.INT4, 3, 4),
    "twenty-eight INT4 tokens were five frames just before": (28, Precision.INT4, 2, 5),
    "six INT8 tokens lie in two open frames": (6, Precision.INT8, 2, 2),
}


@pytest.mark.parametrize(("num_tokens", "precision", "frames", "peak"), FRAMES.values(), ids=FRAMES.keys())
def test_frames(num_tokens, precision, frames, peak):
    assert (SIZES.frames(num_tokens, precision), SIZES.peak_frames(num_tokens, precision)) == (frames, peak)


@given(st.integers(0, 200), st.sampled_from(Precision))
def test_the_peak_is_the_most_frames_on_the_way(num_tokens, precision):
    on_the_way = [SIZES.frames(length, precision) for length in range(num_tokens + 1)]
    assert SIZES.peak_frames(num_tokens, precision) == max(on_the_way)


@given(st.integers(1, 40), st.sampled_from(Precision))
def test_the_longest_sequence_fits_and_the_next_does_not(num_frames, precision):
    longest = SIZES.longest(num_frames, precision)
    assert SIZES.peak_frames(longest, precision) <= num_frames < SIZES.peak_frames(longest + 1, precision)

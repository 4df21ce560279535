import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.kv import (
    GroupSizes,
    concurrent_sequences,
    longest_sequence,
    rank_layout,
    sequence_bytes,
)
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


SMOLLM2 = rank_layout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16)

# A frame of SmolLM2 has 369,408 bytes.
BYTES = {
    "one BF16 token needs one frame": (2, Precision.BF16, 369_408),
    "2,000 BF16 tokens need 125 frames": (2000, Precision.BF16, 125 * 369_408),
    "2,000 FP8 tokens need 63 frames": (2000, Precision.FP8_E4M3, 63 * 369_408),
}


@pytest.mark.parametrize(("num_tokens", "precision", "expected"), BYTES.values(), ids=BYTES.keys())
def test_sequence_bytes(num_tokens, precision, expected):
    assert sequence_bytes(num_tokens, precision, SMOLLM2) == expected


def test_a_pool_holds_twice_the_fp8_sequences_and_more_than_three_times_the_int4_ones():
    pool_bytes = 10_000 * SMOLLM2.frame_bytes
    held = {precision: concurrent_sequences(pool_bytes, 2000, precision, SMOLLM2) for precision in Precision}
    assert held[Precision.BF16] == 80
    assert held[Precision.FP8_E4M3] == held[Precision.FP8_E5M2] == 158
    assert held[Precision.INT4] / held[Precision.BF16] >= 3.2
    assert 1.8 <= held[Precision.INT8] / held[Precision.BF16] < 2


@given(st.integers(0, 300), st.sampled_from(Precision))
def test_the_longest_sequence_needs_no_more_than_the_pool(num_frames, precision):
    longest = longest_sequence(num_frames * SMOLLM2.frame_bytes, precision, SMOLLM2)
    if num_frames == 0:
        assert longest == 0
    else:
        assert sequence_bytes(longest, precision, SMOLLM2) <= num_frames * SMOLLM2.frame_bytes
        assert sequence_bytes(longest + 1, precision, SMOLLM2) > num_frames * SMOLLM2.frame_bytes


RANKS = {
    "one rank has all KV heads": (8, 1, 8),
    "ranks divide the KV heads": (8, 4, 2),
    "more ranks than KV heads repeat them": (2, 8, 1),
}


@pytest.mark.parametrize(("num_kv_heads", "ranks", "expected"), RANKS.values(), ids=RANKS.keys())
def test_rank_layout(num_kv_heads, ranks, expected):
    layout = rank_layout(
        num_layers=2, num_kv_heads=num_kv_heads, head_dim=64, block_size=16, tensor_parallel_size=ranks
    )
    assert layout.num_kv_heads == expected


def test_kv_heads_that_ranks_cannot_share_are_refused():
    with pytest.raises(ValueError, match="3 KV heads cannot be shared by 2 ranks"):
        rank_layout(num_layers=2, num_kv_heads=3, head_dim=64, block_size=16, tensor_parallel_size=2)

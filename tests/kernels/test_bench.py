"""What the GPU check decides without a GPU: pool sizes, tries, and its own checks, which wrong results must fail."""

import itertools

import pytest
import torch

from check_engine import pool_frames
from pagefleet_kernels.bench import elementwise, moves, tries
from pagefleet_kernels.bench.pools import pool_bytes
from pagefleet_kernels.bench.timing import repeats_for
from pagefleet_kernels.layout import FrameLayout, Precision

TINY = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
GIB = 2**30


def test_a_pool_leaves_a_smaller_device_room():
    assert pool_bytes(139 * GIB) == 96 * GIB
    assert pool_bytes(80 * GIB) == 56 * GIB
    assert pool_frames(2**21, 120 * GIB) == 16 * 1024
    assert pool_frames(2**21, 40 * GIB) == 12 * 1024


def test_short_runs_are_repeated_more_often():
    assert [repeats_for(seconds, least=7) for seconds in (0.0, 1e-3, 5e-3, 1.0)] == [100, 50, 10, 7]


def all_tries():
    return [*itertools.chain(*tries.DECODE_TRIES.values()), *itertools.chain(*tries.PREFILL_TRIES.values())]


def test_every_try_fits_the_shared_memory_of_an_h200():
    assert max(one.shared_bytes for one in all_tries()) <= tries.MOST_SHARED


@pytest.mark.parametrize("by_precision", [tries.DECODE_TRIES, tries.PREFILL_TRIES], ids=["decode", "prefill"])
def test_no_try_is_made_twice(by_precision):
    for launches in by_precision.values():
        assert len({launch for launch, _ in launches}) == len(launches)


def test_tries_keep_their_tiles_whole():
    for by_precision, most in ((tries.DECODE_TRIES, 128), (tries.PREFILL_TRIES, 64)):
        for precision, launches in by_precision.items():
            width = 16 if precision is Precision.BF16 else 32
            assert {16 <= launch.frames * width <= most for launch, _ in launches} == {True}


CHECKS = {
    "rms_norm": lambda: elementwise.check_rms_norm(5, 48),
    "rope": lambda: elementwise.check_rope(5, 3, 16),
    "silu_mul": lambda: elementwise.check_silu_mul(3, 40),
    "demote to E4M3": lambda: moves.check_demote(TINY, Precision.FP8_E4M3),
    "demote to E5M2": lambda: moves.check_demote(TINY, Precision.FP8_E5M2),
    "swap": lambda: moves.check_swap(TINY, 4),
    "far frames": lambda: moves.check_far(TINY, Precision.FP8_E4M3, heads=4),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_the_kernels_pass(check):
    assert 0.0 <= check() < 0.2


def test_a_result_off_by_a_unit_of_bf16_and_a_nan_are_seen():
    want = torch.tensor([1.0, 256.0], dtype=torch.float64)
    assert elementwise.near(want.bfloat16(), want) == 0.0
    for wrong in ([1.0078125, 256.0], [1.0, 258.0], [float("nan"), 256.0]):
        with pytest.raises(AssertionError):
            elementwise.near(torch.tensor(wrong).bfloat16(), want)

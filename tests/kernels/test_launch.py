"""Launch parameters: exact values of the rules, and what must hold for any shape."""

import itertools

import pytest

from pagefleet_kernels.launch import (
    PlainLaunch,
    decode_launch,
    num_splits,
    plain_launch,
    power_of_two_from,
    prefill_launch,
)
from pagefleet_kernels.layout import Precision

H200_SLOTS = 132 * 4

SPLITS = {
    "one long sequence is cut until its programs fill the device": ((1, 8, 1024), 64),
    "eight sequences of 16k tokens fill it with eight shares each": ((8, 8, 256), 8),
    "a batch that fills the device by itself is not cut": ((256, 8, 16), 1),
    "one frame cannot be cut": ((1, 8, 1), 1),
    "an empty table has one share": ((4, 8, 0), 1),
    "short sequences are cut no further than one round of the device": ((8, 8, 16), 8),
}


@pytest.mark.parametrize(("shape", "expected"), SPLITS.values(), ids=SPLITS.keys())
def test_num_splits(shape, expected):
    sequences, heads, iterations = shape
    got = num_splits(num_sequences=sequences, num_kv_heads=heads, num_iterations=iterations, num_slots=H200_SLOTS)
    assert got == expected


def test_splits_never_exceed_the_iterations_and_fill_most_of_the_device():
    for sequences, heads, iterations in itertools.product((1, 3, 8, 31, 64), (1, 3, 8), (1, 7, 64, 500, 4096)):
        got = num_splits(num_sequences=sequences, num_kv_heads=heads, num_iterations=iterations, num_slots=H200_SLOTS)
        assert 1 <= got <= max(1, min(64, iterations))
        if iterations >= 500:
            work = sequences * heads * iterations
            rounds = -(-sequences * heads * got // H200_SLOTS)
            busy = work / (min(H200_SLOTS, sequences * heads * 64) * rounds * -(-iterations // got))
            assert busy >= 0.7


def test_powers_of_two():
    assert [power_of_two_from(n) for n in (0, 1, 2, 3, 16, 17, 80)] == [1, 1, 2, 4, 16, 32, 128]


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_tiles_fit_the_tensor_cores(precision, block_size, head_dim):
    decode = decode_launch(precision, block_size=block_size, head_dim=head_dim)
    prefill = prefill_launch(precision, group=5, block_size=block_size, head_dim=head_dim)
    width = block_size if precision is Precision.BF16 else 2 * block_size
    for frames in (decode.frames, prefill.frames):
        assert 16 <= frames * width <= 128  # a product needs 16 keys
        assert frames & (frames - 1) == 0
    assert 64 <= prefill.rows <= 128
    if precision in (Precision.INT8, Precision.INT4):
        assert decode.frames == 1


def test_a_tile_holds_a_token_of_any_group():
    assert prefill_launch(Precision.BF16, group=200, block_size=16, head_dim=64).rows == 256


PLAIN = {
    "seal": PlainLaunch(num_warps=4),
    "write_open": PlainLaunch(num_warps=4),
    "combine": PlainLaunch(num_warps=4),
    "rope": PlainLaunch(num_warps=4),
    "copy": PlainLaunch(num_warps=8, block=4096),
    "rms_norm": PlainLaunch(num_warps=8),
    "silu_mul": PlainLaunch(num_warps=4, block=1024),
}


@pytest.mark.parametrize(("kernel", "expected"), PLAIN.items(), ids=PLAIN.keys())
def test_kernels_without_products(kernel, expected):
    assert plain_launch(kernel) == expected


def test_an_unknown_kernel_has_no_launch():
    with pytest.raises(ValueError, match="kernel 'sort': no launch parameters are known"):
        plain_launch("sort")

"""Launch parameters: exact values of the rules, and what must hold for any shape."""

import itertools

import pytest

from pagefleet_kernels.launch import (
    PlainLaunch,
    decode_launch,
    decode_shared_bytes,
    num_splits,
    plain_launch,
    power_of_two_from,
    prefill_launch,
    prefill_shared_bytes,
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


SHARED = 227 * 1024
"""What one program may take on sm_90."""


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_tiles_fit_the_tensor_cores_and_shared_memory(precision, block_size, head_dim):
    shape = {"block_size": block_size, "head_dim": head_dim}
    decode = decode_launch(precision, **shape)
    prefill = prefill_launch(precision, group=5, **shape)
    width = block_size if precision is Precision.BF16 else 2 * block_size
    for frames in (decode.frames, prefill.frames):
        assert 16 <= frames * width <= 128  # a product needs 16 keys
        assert frames & (frames - 1) == 0
    assert 16 <= prefill.rows <= 128
    assert decode.num_warps in (1, 2, 4, 8)
    if precision in (Precision.INT8, Precision.INT4):
        assert decode.frames == 1
    if head_dim <= 128 or block_size <= 32:  # wider ones are refused by the compiler, if at all
        assert decode_shared_bytes(decode, precision, **shape) <= SHARED
        assert prefill_shared_bytes(prefill, precision, **shape) <= SHARED


ROWS = {
    "128 as a rule": ((Precision.BF16, 16, 128), 128),
    "64 for wide heads": ((Precision.BF16, 16, 256), 64),
    "32 where codes of wide heads are converted": ((Precision.FP8_E4M3, 16, 256), 32),
    "128 for INT4 in usual frames": ((Precision.INT4, 16, 128), 128),
    "32 for INT4 in frames twice as long": ((Precision.INT4, 32, 128), 32),
    "16 for INT4 in wide heads": ((Precision.INT4, 16, 256), 16),
}


@pytest.mark.parametrize(("shape", "expected"), ROWS.values(), ids=ROWS.keys())
def test_rows_of_a_prefill_tile(shape, expected):
    precision, block_size, head_dim = shape
    assert prefill_launch(precision, group=1, block_size=block_size, head_dim=head_dim).rows == expected


WARPS = {
    "one for a frame that one warp holds": ((Precision.INT4, 16, 128), (1, 8)),
    "one for a smaller head": ((Precision.INT8, 16, 64), (1, 8)),
    "two where INT4's head is padded": ((Precision.INT4, 16, 80), (2, 4)),
    "as many as frames are longer": ((Precision.INT8, 64, 128), (4, 2)),
    "twice as many for INT4": ((Precision.INT4, 32, 128), (4, 2)),
    "eight at most": ((Precision.INT4, 64, 256), (8, 1)),
}


@pytest.mark.parametrize(("shape", "expected"), WARPS.values(), ids=WARPS.keys())
def test_warps_over_frames_with_inner_scales_and_programs_of_a_multiprocessor(shape, expected):
    precision, block_size, head_dim = shape
    plan = decode_launch(precision, block_size=block_size, head_dim=head_dim)
    assert (plan.num_warps, plan.residents) == expected


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

"""The Triton kernels in the interpreter, at tiny shapes: attention against plain fp64 loops over the dequantised cache.

Results are fp32 where nothing else is said: a bound without their rounding shows a single lost token.
`make test-kernels-full` runs many more shapes, and shows that wrong kernels fail these checks.
"""

import pytest
import torch

from pagefleet_kernels.checks import check_copy, check_decode, check_prefill, check_seal, check_write_open
from pagefleet_kernels.copy_frames import copy_frames
from pagefleet_kernels.guards import GuardedMemory
from pagefleet_kernels.launch import prefill_launch
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode import paged_decode
from pagefleet_kernels.rms_norm import launcher as rms_launcher
from pagefleet_kernels.rms_norm import rms_norm
from pagefleet_kernels.rope import launcher as rope_launcher
from pagefleet_kernels.rope import rope
from pagefleet_kernels.seal_frames import seal_open_frames
from pagefleet_kernels.silu_mul import launcher as silu_launcher
from pagefleet_kernels.silu_mul import silu_mul
from pagefleet_kernels.tables import Masking, OpenTable
from pagefleet_kernels.write_open import write_open

TINY = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
PADDED = FrameLayout(num_layers=1, num_kv_heads=2, head_dim=24, block_size=8)
MIXED = [Precision.FP8_E4M3, Precision.BF16, Precision.INT4, Precision.INT8]
QUANTISED = [p for p in Precision if p is not Precision.BF16]


EXACT = {"dtype": torch.float32}


def around_a_frame(precision):
    size = TINY.tokens_per_frame(precision)
    return [0, 1, 7, 8, 9, size - 1, size, size + 1, 2 * size + 3]


@pytest.mark.parametrize("precision", list(Precision))
def test_decode_of_lengths_around_a_frame(precision):
    check_decode(TINY, around_a_frame(precision), [precision], heads=4, splits=1, **EXACT)


@pytest.mark.parametrize("precision", list(Precision))
def test_decode_cut_into_more_shares_than_some_sequences_have_frames(precision):
    check_decode(TINY, [0, 5, 70], [precision], heads=2, splits=4, **EXACT)


def test_more_shares_than_one_merge_holds():
    check_decode(TINY, [30], [Precision.FP8_E4M3], heads=4, splits=35, **EXACT)


@pytest.mark.parametrize("precision", list(Precision))
def test_prefill_of_chunks_that_begin_and_end_inside_groups(precision):
    check_prefill(TINY, [(0, 1), (0, 40), (5, 12), (30, 30), (47, 75)], [precision], heads=4, **EXACT)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8_E4M3, Precision.FP8_E5M2])
def test_prefill_after_so_many_frames_that_their_loop_needs_no_mask(precision):
    plan = prefill_launch(precision, group=2, block_size=TINY.block_size, head_dim=TINY.head_dim)
    before = 2 * plan.rows // 2  # tokens before the third tile
    assert before >= 2 * plan.frames * TINY.tokens_per_frame(precision)
    check_prefill(TINY, [(0, before + 12)], [precision], heads=4, **EXACT)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
def test_a_result_in_bf16_is_off_by_its_rounding_at_most(precision):
    check_decode(TINY, [9, 60], [precision], heads=4, dtype=torch.bfloat16)
    check_prefill(TINY, [(21, 40)], [precision], heads=4, dtype=torch.bfloat16)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8_E4M3, Precision.INT8])
def test_attention_finds_frames_beyond_two_to_the_31_elements(precision):
    check_decode(TINY, [60], [precision], heads=4, far=True, **EXACT)
    check_prefill(TINY, [(70, 76)], [precision], heads=4, far=True, **EXACT)


def test_writes_seals_and_copies_find_frames_beyond_two_to_the_31_elements():
    check_write_open(TINY, far=True)
    check_copy(TINY, far=True)
    check_seal(TINY, Precision.FP8_E4M3, from_open=True, far=True)
    check_seal(TINY, Precision.FP8_E4M3, from_open=False, far=True)


SPECIAL = {
    "four precisions in one sequence": {"mix": MIXED},
    "window and sinks": {"mix": MIXED, "masking": Masking(window=20, sinks=4)},
    "window of one": {"mix": [Precision.FP8_E4M3], "masking": Masking(window=1)},
    "soft cap": {"mix": [Precision.INT8, Precision.BF16], "masking": Masking(soft_cap=1.5)},
    "a head that is no power of two, three query heads to one": {"layout": PADDED, "heads": 6},
    "as many query heads as KV heads": {"heads": 2},
    "eight query heads to one": {"heads": 16, "mix": [Precision.INT4]},
}


@pytest.mark.parametrize("case", SPECIAL.values(), ids=SPECIAL.keys())
def test_decode_and_prefill_of_special_shapes(case):
    arguments = {"layout": TINY, "heads": 4, "mix": [Precision.FP8_E4M3], **EXACT, **case}
    check_decode(lengths=[1, 0, 33, 60], **arguments)
    check_prefill(chunks=[(0, 19), (21, 40)], **arguments)


@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("from_open", [False, True], ids=["from values", "in place"])
def test_seal(precision, from_open):
    check_seal(TINY, precision, from_open=from_open)


@pytest.mark.parametrize("layout", [TINY, PADDED], ids=["head 16", "head 24"])
def test_write_open_and_copy(layout):
    check_write_open(layout)
    check_copy(layout)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_small_ops_agree_with_their_references_and_write_nothing_else(dtype):
    torch.manual_seed(0)
    step = {"rtol": 2**-7, "atol": 1e-6} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    x, weight, memory = torch.randn(5, 48).to(dtype), torch.randn(48).to(dtype), GuardedMemory()
    reference = rms_norm(x, weight, 1e-5, impl="reference")
    torch.testing.assert_close(rms_launcher.rms_norm(x, weight, 1e-5, allocate=memory), reference, **step)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, impl="triton"), reference, **step)
    heads, angles = torch.randn(3, 5, 24).to(dtype), torch.randn(3, 12)
    turns = angles.cos(), angles.sin()
    reference = rope(heads, *turns, impl="reference")
    torch.testing.assert_close(rope_launcher.rope(heads, *turns, allocate=memory), reference, **step)
    torch.testing.assert_close(rope(heads, *turns, impl="triton"), reference, **step)
    reference = silu_mul(x, impl="reference")
    torch.testing.assert_close(silu_launcher.silu_mul(x, allocate=memory), reference, **step)
    torch.testing.assert_close(silu_mul(x, impl="triton"), reference, **step)
    memory.check()


def test_a_write_beside_a_result_is_found():
    memory = GuardedMemory()
    inside = memory((3,), torch.float32, torch.device("cpu"))
    memory.check()
    inside.as_strided((1,), (1,), inside.storage_offset() + 3)[0] = 0.0
    with pytest.raises(AssertionError, match="beside its result"):
        memory.check()


def test_an_empty_batch_launches_nothing():
    pool, none = torch.zeros((1, TINY.frame_bytes), dtype=torch.uint8), torch.zeros(0, dtype=torch.int32)
    tokens = torch.zeros((0, 2, 16))
    table = OpenTable(frames=none.view(0, 1), starts=none, lengths=none)
    assert paged_decode(torch.zeros((0, 4, 16)), pool, TINY, 0, [], table, scale=1.0, impl="triton").shape == (0, 4, 16)
    write_open(pool, TINY, 0, none, none, tokens, tokens, impl="triton")
    copy_frames(pool, TINY, none, none, impl="triton")
    seal_open_frames(pool, TINY, [0], Precision.FP8_E4M3, none.view(0, 2), impl="triton")


def test_queries_of_another_dtype_are_rounded_and_the_result_has_their_dtype():
    pool = torch.zeros((2, TINY.frame_bytes), dtype=torch.uint8)
    zero = torch.zeros(1, dtype=torch.int32)
    table = OpenTable(frames=zero.view(1, 1), starts=zero, lengths=zero + 3)
    keys, values = torch.randn((2, 3, 2, 16), generator=torch.Generator().manual_seed(0))
    write_open(pool, TINY, 0, zero.expand(3), torch.arange(3), keys, values)
    queries = torch.randn((1, 4, 16), generator=torch.Generator().manual_seed(1))
    got = paged_decode(queries, pool, TINY, 0, [], table, scale=0.25, impl="triton")
    want = paged_decode(queries, pool, TINY, 0, [], table, scale=0.25, impl="reference")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=2**-6)

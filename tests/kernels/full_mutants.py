"""Wrong kernels, each of which must fail its check: a test that no wrong kernel fails shows nothing.

Part of `make test-kernels-full`. A mutant replaces a line in a copy of the package and runs in a process of its own.
"""

import pytest

from tests.kernels.mutants import assert_caught

TINY = "FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)"
FP8, BF16 = "[Precision.FP8_E4M3]", "[Precision.BF16]"
EXACT = "heads=4, dtype=torch.float32"
DECODE = f"check_decode({TINY}, [9, 17, 70], {FP8}, {EXACT})"
INT4 = f"check_decode({TINY}, [9, 70], [Precision.INT4], {EXACT})"
WINDOW = f"check_decode({TINY}, [70], {FP8}, {EXACT}, masking=Masking(window=20, sinks=4))"
PREFILL = f"check_prefill({TINY}, [(0, 40), (47, 60)], {FP8}, {EXACT})"
HOT = f"check_prefill({TINY}, [(0, 140)], {FP8}, {EXACT})"
HOT_BF16 = f"check_prefill({TINY}, [(0, 140)], {BF16}, {EXACT})"
MANY_PARTS = f"check_decode({TINY}, [30, 62], {FP8}, {EXACT}, splits=35)"
INT8_SEAL = f"check_seal({TINY}, Precision.INT8, from_open=True)"

MUTANTS = {
    "the K scale is dropped": (
        "device_code.py",
        "k_scale = tl.load(scales, mask=held, other=0.0) * scale_log2",
        "k_scale = tl.zeros_like(scale_log2 + tl.load(scales, mask=held, other=0.0)) + scale_log2",
        DECODE,
    ),
    "the V scale is dropped": (
        "device_code.py",
        "v_mul = tl.load(scales + KV_HEADS, mask=held, other=0.0)",
        "v_mul = tl.load(scales + KV_HEADS, mask=held, other=0.0) * 0.0 + 0.01",
        DECODE,
    ),
    "K's scale is taken for V": ("device_code.py", "scales + KV_HEADS, mask", "scales + 0, mask", DECODE),
    "the last token of the open frames is not seen": (
        "paged_decode/kernel.py",
        "held = token < length",
        "held = token < length - 1",
        DECODE,
    ),
    "the bytes after the codes count as tokens": ("device_code.py", "(slot < CODE_ROWS)", "(slot <= CODE_ROWS)", INT4),
    "the nibbles are exchanged in V": (
        "device_code.py",
        "codes_to_half(v, True, PRECISION, NATIVE)",
        "codes_to_half(v, False, PRECISION, NATIVE)",
        INT4,
    ),
    "the minima of V are dropped": (
        "device_code.py",
        "bias = bias * factor + tl.sum(weights * v_low[None, :], 1)",
        "bias = bias * factor",
        INT4,
    ),
    "the window is one too long": (
        "device_code.py",
        "position[:, None] - WINDOW)",
        "position[:, None] - WINDOW - 1)",
        WINDOW,
    ),
    "the sinks are not seen": ("device_code.py", "(key[None, :] < SINKS)", "(key[None, :] < 0)", WINDOW),
    "the state is not rescaled to the new maximum": (
        "device_code.py",
        "factor = tl.exp2(largest - top)",
        "factor = tl.exp2(largest - largest)",
        DECODE,
    ),
    "a query sees the next position": (
        "device_code.py",
        "near = key[None, :] <= position",
        "near = key[None, :] - 1 <= position",
        PREFILL,
    ),
    "a query sees its own group sealed": (
        "device_code.py",
        "(start[None, :] < group_start[:, None])",
        "(start[None, :] <= group_start[:, None])",
        PREFILL,
    ),
    "the open frames of the continued group are not seen": (
        "paged_prefill/kernel.py",
        "(first_group == open_start)",
        "(first_group < 0)",
        PREFILL,
    ),
    "the scale is rounded to nearest instead of up": ("seal_frames/kernel.py", "+ 0xFFFF)", "+ 0x7FFF)", INT8_SEAL),
    "a group is read in the wrong order": (
        "seal_frames/kernel.py",
        "group * opens + token // BLOCK_SIZE",
        "group * opens + (opens - 1 - token // BLOCK_SIZE)",
        INT8_SEAL,
    ),
    "a row without parts is divided by zero": (
        "paged_decode/kernel.py",
        "    out = acc / tl.where(total == 0.0, 1.0, total)\n",
        "    out = acc / total\n",
        f"check_decode({TINY}, [0, 70], [Precision.FP8_E4M3], heads=4, splits=3)",
    ),
    "the first frame is read for all in the loop without masks": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index).to(tl.int64)",
        "frame = tl.load(frames_ptr + index * 0).to(tl.int64)",
        HOT,
    ),
    "the first BF16 frame is read for all in the loop without masks": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index).to(tl.int64)",
        "frame = tl.load(frames_ptr + index * 0).to(tl.int64)",
        HOT_BF16,
    ),
    "frame 0 is read in the loop without masks": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index).to(tl.int64)",
        "frame = tl.load(frames_ptr + index).to(tl.int64) * 0",
        HOT,
    ),
    "the K scale is dropped in the loop without masks": (
        "device_code.py",
        "k_scale = tl.load(scales) * scale_log2",
        "k_scale = tl.load(scales) * 0.0 + scale_log2",
        HOT,
    ),
    "the V scale is dropped in the loop without masks": (
        "device_code.py",
        "v_mul = tl.load(scales + KV_HEADS)\n",
        "v_mul = tl.load(scales + KV_HEADS) * 0.0 + 0.01\n",
        HOT,
    ),
    "V is lost in the loop without masks": (
        "device_code.py",
        "v_mul = tl.load(scales + KV_HEADS)\n",
        "v_mul = tl.load(scales + KV_HEADS) * 0.0\n",
        HOT,
    ),
    "K's scale is taken for V in the loop without masks": (
        "device_code.py",
        "v_mul = tl.load(scales + KV_HEADS)\n",
        "v_mul = tl.load(scales)\n",
        HOT,
    ),
    "K's tile is taken for V": ("device_code.py", "base + KV_HEADS * TILE_BYTES + slot", "base + slot", HOT),
    "K's tile is taken for V in BF16": (
        "device_code.py",
        "(base + KV_HEADS * (TILE_BYTES // 2))[:, None]",
        "base[:, None]",
        HOT_BF16,
    ),
    "the open frames are seen once per precision": (
        "paged_prefill/kernel.py",
        "(first_group == open_start) & (part == 0)",
        "(first_group == open_start)",
        f"check_prefill({TINY}, [(33, 36)], [Precision.FP8_E4M3, Precision.INT8], {EXACT})",
    ),
    "the chunk's own tokens are seen once per precision": (
        "paged_prefill/kernel.py",
        "own_end = tl.where(part == 0, last + 1, 0)",
        "own_end = last + 1",
        f"check_prefill({TINY}, [(0, 40)], [Precision.FP8_E4M3, Precision.INT8], {EXACT})",
    ),
    "parts beyond the first 32 are not rescaled": (
        "paged_decode/kernel.py",
        "acc = acc * before +",
        "acc = acc +",
        MANY_PARTS,
    ),
    "parts beyond the first 32 are not merged": (
        "paged_decode/kernel.py",
        "tl.range(0, num_parts, PARTS, num_stages=1)",
        "tl.range(0, PARTS, PARTS, num_stages=1)",
        MANY_PARTS,
    ),
    "chunks beyond the first 128 are not found": (
        "paged_prefill/kernel.py",
        "range(0, num_sequences, 128)",
        "range(0, 128, 128)",
        f"check_prefill({TINY}, [(0, 1)] * 130, {FP8}, {EXACT})",
    ),
    "a part is written beside the results": (
        "paged_decode/kernel.py",
        "part = q_row * num_parts + first_part + split",
        "part = q_row * num_parts + first_part + split + 1",
        f"check_decode({TINY}, [70], {FP8}, {EXACT}, splits=3)",
    ),
    "a result is written beside the others": (
        "paged_prefill/kernel.py",
        "valid = (row < TOKENS * GROUP) & (token < end)",
        "valid = (row < TOKENS * GROUP) & (token <= end)",
        PREFILL,
    ),
}

LOST = {
    "the last open token": ("held = token < length", "held = token < length - 1", "paged_decode/kernel.py", 1),
    "the last token of a frame": ("(slot < CODE_ROWS)", "(slot < CODE_ROWS - 1)", "device_code.py", 17),
    "the last frame": ("begin + share, count)", "begin + share, count - 1)", "paged_decode/kernel.py", 17),
}
"""What is replaced, where, and from which length on it must be noticed."""

for _lost, (_right, _wrong, _file, _least) in LOST.items():
    _lengths = [n for n in (1, 7, 8, 9, 17, 19, 33, 35, 60, 70, 150) if n >= _least]
    MUTANTS |= {
        f"{_lost} is not seen, in {_name}": (_file, _right, _wrong, f"all_fail({_lengths}, {_precisions})")
        for _name, _precisions in (("FP8", FP8), ("BF16", BF16))
    }

NEAR_FRAME = "frame = tl.load(frames_ptr + index, mask=held, other=0)"
NARROW = {
    "decode": ("device_code.py", NEAR_FRAME, f"check_decode({TINY}, [70], {FP8}, {EXACT}, far=True)"),
    "decode in BF16": ("device_code.py", NEAR_FRAME, f"check_decode({TINY}, [70], {BF16}, {EXACT}, far=True)"),
    "prefill": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index)",
        f"check_prefill({TINY}, [(128, 132)], {FP8}, {EXACT}, far=True)",
    ),
    "prefill in BF16": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index)",
        f"check_prefill({TINY}, [(128, 132)], {BF16}, {EXACT}, far=True)",
    ),
    "prefill where some rows see a frame": (
        "device_code.py",
        NEAR_FRAME,
        f"check_prefill({TINY}, [(0, 40)], {FP8}, {EXACT}, far=True)",
    ),
    "the scales of K": (
        "device_code.py",
        "k_base = tl.load(frames_ptr + first)",
        f"check_decode({TINY}, [70], [Precision.INT8], {EXACT}, far=True)",
    ),
    "the open frames in decode": (
        "paged_decode/kernel.py",
        "q, pool16_ptr, frame",
        f"check_decode({TINY}, [9], {FP8}, {EXACT}, far=True)",
    ),
    "the open frames in prefill": (
        "paged_prefill/kernel.py",
        "q, pool16_ptr, frame",
        f"check_prefill({TINY}, [(9, 12)], {FP8}, {EXACT}, far=True)",
    ),
    "writes": (
        "write_open/kernel.py", "frame = tl.load(frames_ptr + token)", f"check_write_open({TINY}, far=True)"
    ),
    "the source of a seal": (
        "seal_frames/kernel.py",
        "token // BLOCK_SIZE, mask=held, other=0)",
        f"check_seal({TINY}, Precision.FP8_E4M3, from_open=True, far=True)",
    ),
    "the target of a seal": (
        "seal_frames/kernel.py",
        "target = tl.load(frames_ptr + group * opens)",
        f"check_seal({TINY}, Precision.FP8_E4M3, from_open=False, far=True)",
    ),
    "the source of a copy": (
        "copy_frames/kernel.py", "tl.load(sources_ptr + pair)", f"check_copy({TINY}, far=True)"
    ),
    "the target of a copy": (
        "copy_frames/kernel.py", "tl.load(targets_ptr + pair)", f"check_copy({TINY}, far=True)"
    ),
}  # fmt: skip
MUTANTS |= {
    f"offsets are 32 bits wide in {where}": (file, f"{load}.to(tl.int64)", load, check)
    for where, (file, load, check) in NARROW.items()
}
PROGRAM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import sys
sys.path[:0] = sys.argv[1:2]
import torch
from pagefleet_kernels.checks import *
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking


def all_fail(lengths, precisions):
    # AssertionError if decode fails at every one of these lengths
    caught = 0
    for length in lengths:
        try:
            check_decode(@tiny, [length], precisions, heads=4, dtype=torch.float32, splits=1)
        except AssertionError:
            caught += 1
    assert caught < len(lengths), "caught at every length"

@check
print("survived")
"""


@pytest.mark.parametrize(("file", "right", "wrong", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a_wrong_kernel_fails(tmp_path, file, right, wrong, check):
    assert_caught(tmp_path, file, right, wrong, PROGRAM.replace("@tiny", TINY).replace("@check", check))

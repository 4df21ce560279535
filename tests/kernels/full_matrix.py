"""The long tests: many shapes in the interpreter, every kernel compiled, and wrong kernels shown to fail.

Run by `make test-kernels-full`; pytest does not collect it by name otherwise. It takes minutes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pagefleet_kernels
from pagefleet_kernels.checks import check_decode, check_prefill, check_seal
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode import launcher
from pagefleet_kernels.seal_frames import seal_frames
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable

SHAPES = {
    "SmolLM2 3/9 head 64": (FrameLayout(num_layers=2, num_kv_heads=3, head_dim=64), 9),
    "4/4 head 80": (FrameLayout(num_layers=1, num_kv_heads=4, head_dim=80), 4),
    "1/5 head 96": (FrameLayout(num_layers=1, num_kv_heads=1, head_dim=96), 5),
    "2/8 head 128, blocks of 32": (FrameLayout(num_layers=1, num_kv_heads=2, head_dim=128, block_size=32), 8),
    "1/8 head 256, blocks of 8": (FrameLayout(num_layers=1, num_kv_heads=1, head_dim=256, block_size=8), 8),
}
LENGTHS = [0, 1, 15, 16, 17, 31, 32, 33, 55, 56, 57, 200]
MIXES = {str(p): [p] for p in Precision} | {"mixed": [Precision.FP8_E4M3, Precision.BF16, Precision.INT4]}


@pytest.mark.parametrize(("layout", "heads"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("masking", [Masking(), Masking(window=40, sinks=4)], ids=["all", "window"])
def test_attention(layout, heads, mix, masking):
    arguments = {"layout": layout, "mix": mix, "heads": heads, "masking": masking, "num_frames": 200}
    check_decode(lengths=LENGTHS, **arguments)
    check_decode(lengths=[150, 3], splits=5, **arguments)
    check_prefill(chunks=[(0, 1), (0, 90), (5, 12), (30, 30), (47, 130)], **arguments)


@pytest.mark.parametrize(("layout", "heads"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.BF16])
def test_seal(layout, heads, precision):
    check_seal(layout, precision, from_open=True)
    check_seal(layout, precision, from_open=False)


def far_and_near():
    """Decode the same sequence from frames below and beyond 2^31 bytes; the pool's untouched pages cost no memory."""
    layout = FrameLayout(num_layers=1, num_kv_heads=2, head_dim=16, block_size=8)
    last = 2**31 // layout.frame_bytes + 100
    pool = torch.empty((last + 1, layout.frame_bytes), dtype=torch.uint8)
    keys, values = torch.randn((2, 1, 16, 2, 16), generator=torch.Generator().manual_seed(0)).bfloat16()
    queries = torch.randn((1, 4, 16), generator=torch.Generator().manual_seed(1)).bfloat16()
    results = []
    for frame in (0, last):
        frames = torch.tensor([[frame]], dtype=torch.int32)
        seal_frames(pool, layout, 0, Precision.FP8_E4M3, frames[0], keys, values, impl="reference")
        zero = torch.zeros(1, dtype=torch.int32)
        table = FrameTable(precision=Precision.FP8_E4M3, frames=frames, starts=zero[:, None], counts=zero + 1)
        own = OpenTable(frames=frames, starts=zero + 16, lengths=zero)
        results.append(launcher.paged_decode(queries, pool, layout, 0, [table], own, 0.25, Masking()))
    return results


def test_frames_beyond_two_gibibytes_are_found():
    near, far = far_and_near()
    assert torch.equal(near, far)
    assert bool(near.isfinite().all())


TINY = "FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)"
DECODE = f"check_decode({TINY}, [9, 17, 70], [Precision.FP8_E4M3], heads=4)"
INT4 = f"check_decode({TINY}, [9, 70], [Precision.INT4], heads=4)"
WINDOW = f"check_decode({TINY}, [70], [Precision.FP8_E4M3], heads=4, masking=Masking(window=20, sinks=4))"
PREFILL = f"check_prefill({TINY}, [(0, 40), (47, 60)], [Precision.FP8_E4M3], heads=4)"
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
        "tl.where(first_group == open_start,",
        "tl.where(first_group < 0,",
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
        "out = tl.sum(acc * factor[:, None], 0) / tl.where(total == 0.0, 1.0, total)",
        "out = tl.sum(acc * factor[:, None], 0) / total",
        f"check_decode({TINY}, [0, 70], [Precision.FP8_E4M3], heads=4, splits=3)",
    ),
    "offsets are 32 bits wide": (
        "device_code.py",
        "frame = tl.load(frames_ptr + index, mask=held, other=0).to(tl.int64)",
        "frame = tl.load(frames_ptr + index, mask=held, other=0)",
        "near, far = far_and_near(); assert torch.equal(near, far)",
    ),
}
PROGRAM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import sys
sys.path[:0] = sys.argv[1:3]
import torch
from pagefleet_kernels.checks import *
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking
from full_matrix import far_and_near
{check}
print("survived")
"""


@pytest.mark.parametrize(("file", "right", "wrong", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a_wrong_kernel_fails(tmp_path, file, right, wrong, check):
    shutil.copytree(Path(pagefleet_kernels.__file__).parent, tmp_path / "pagefleet_kernels")
    mutated = tmp_path / "pagefleet_kernels" / file
    source = mutated.read_text()
    assert right in source, "the mutant no longer applies"
    mutated.write_text(source.replace(right, wrong))
    command = [sys.executable, "-c", PROGRAM.format(check=check), str(tmp_path), str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert "survived" not in run.stdout
    assert run.returncode < 0 or "AssertionError" in run.stderr, run.stderr[
        -1500:
    ]  # a wild address may end the process


def test_every_kernel_compiles_for_sm_90_without_spills_in_the_hot_loop():
    program = """
from pagefleet_kernels.offline_cases import all_cases
for case in all_cases():
    built = case.compile(90)
    hot = built.loops[:1]
    assert not any(loop.spills for loop in hot), (case.name, built.spill_bytes, built.loops)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]

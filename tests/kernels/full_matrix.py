"""The long tests: many shapes in the interpreter, and every kernel compiled. `full_mutants.py` has wrong ones.

Run by `make test-kernels-full`; pytest does not collect it by name otherwise. It takes minutes.
"""

import os
import subprocess
import sys

import pytest
import torch

from pagefleet_kernels.checks import check_decode, check_prefill, check_seal
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking

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
    arguments["dtype"] = torch.float32
    check_decode(lengths=LENGTHS, **arguments)
    check_decode(lengths=[150, 3], splits=5, **arguments)
    check_prefill(chunks=[(0, 1), (0, 90), (5, 12), (30, 30), (47, 130)], **arguments)


@pytest.mark.parametrize(("layout", "heads"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.BF16])
def test_seal(layout, heads, precision):
    check_seal(layout, precision, from_open=True)
    check_seal(layout, precision, from_open=False)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_frames_beyond_two_to_the_31_elements_are_found(mix):
    layout = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
    arguments = {"layout": layout, "mix": mix, "heads": 4, "dtype": torch.float32, "far": True}
    check_decode(lengths=[0, 1, 150], splits=3, **arguments)
    check_prefill(chunks=[(0, 90), (70, 76)], **arguments)


@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.BF16])
@pytest.mark.parametrize("from_open", [False, True], ids=["from values", "in place"])
def test_groups_beyond_two_to_the_31_elements_are_sealed(precision, from_open):
    layout = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
    check_seal(layout, precision, from_open=from_open, far=True)


def test_more_chunks_than_one_look_at_their_offsets_finds():
    layout = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
    check_prefill(layout, [(0, 1)] * 127 + [(3, 6)] * 4, [Precision.FP8_E4M3], heads=4, dtype=torch.float32)


COMPILE = """
import sys
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.offline_cases import all_cases

capability, most = int(sys.argv[1]), int(sys.argv[2])
for case in all_cases():
    if capability < 89 and Precision.FP8_E4M3 in case.name:
        continue
    built = case.compile(capability)
    told = case.name, built
    assert built.registers <= 255 and built.shared_bytes <= most, told
    if case.shared_bound is not None:
        assert built.shared_bytes <= case.shared_bound, told
        assert built.loops, told
    if capability < 90:
        continue
    assert not any(loop.spills for loop in built.loops[:1]), told
    if case.residents is not None:
        registers = -(-built.registers // 8) * 8 * 32 * case.num_warps
        assert case.residents * registers <= 65536, told
        assert case.residents * (built.shared_bytes + 1024) <= 228 * 1024, told
"""


@pytest.mark.parametrize(("capability", "shared"), [(90, 227 * 1024), (80, 163 * 1024)], ids=["sm_90", "sm_80"])
def test_every_kernel_compiles_and_takes_what_its_launch_parameters_expect(capability, shared):
    """They are chosen for sm_90: no spills in a hot loop there, and as many programs at once as expected."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, str(capability), str(shared)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]

"""The long tests of what `check_gpu.py` brings: its tries compiled, and wrong kernels shown to fail its own checks.

Run by `make test-kernels-full`; pytest does not collect it by name otherwise. It takes minutes.
"""

import json
import os
import subprocess
import sys

import pytest

from pagefleet_kernels.bench import tries
from tests.kernels.mutants import assert_caught

COMPILE = """
import json, sys
from pagefleet_kernels.bench.tries import DECODE_TRIES, PREFILL_TRIES
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.offline_cases import LLAMA_8B, case
from pagefleet_kernels.variants import Model, decode_variant, prefill_variant
precision, model = Precision(sys.argv[2]), Model(layout=LLAMA_8B, group=4)
if sys.argv[1] == "decode":
    variants = [decode_variant(model, precision, direct=False, launch=n) for n, _ in DECODE_TRIES[precision]]
else:
    variants = [prefill_variant(model, precision, direct=True, launch=n) for n, _ in PREFILL_TRIES[precision]]
for variant in variants:
    built = case("try", variant).compile(90)
    print(json.dumps([built.shared_bytes, [loop.spills for loop in built.loops[:1]]]))
"""


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("decode", p) for p in tries.DECODE_TRIES] + [("prefill", p) for p in tries.PREFILL_TRIES],
)
def test_every_try_compiles_into_its_shared_memory_without_spills_in_the_hot_loop(kind, precision):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE, kind, precision]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    expected = (tries.DECODE_TRIES if kind == "decode" else tries.PREFILL_TRIES)[precision]
    assert [shared <= one.shared_bytes for (shared, _), one in zip(found, expected, strict=True)] == [True] * len(found)
    assert [spills for _, spills in found] == [[0]] * len(found)


TINY = "FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)"
DEMOTE = f"check_demote({TINY}, Precision.FP8_E4M3)"
SWAP = f"check_swap({TINY}, 4)"
MUTANTS = {
    "demotion forgets all layers but one": (
        "seal_frames/__init__.py",
        "pool, layout, range(layout.num_layers), precision, frames, impl=impl",
        "pool, layout, range(1 if impl == 'triton' else layout.num_layers), precision, frames, impl=impl",
        DEMOTE,
    ),
    "demotion writes the second frame of a run": (
        "seal_frames/__init__.py",
        "pool, layout, range(layout.num_layers), precision, frames, impl=impl",
        "pool, layout, range(layout.num_layers), precision, frames.flip(1) if impl == 'triton' else frames, impl=impl",
        DEMOTE,
    ),
    "a swap takes the slot's number for the frame's": (
        "copy_frames/__init__.py",
        "host[slot].copy_(pool[frame]",
        "host[slot].copy_(pool[slot]",
        SWAP,
    ),
    "a swap back goes to the frame of the slot's number": (
        "copy_frames/__init__.py",
        "pool[frame].copy_(host[slot]",
        "pool[slot].copy_(host[slot]",
        SWAP,
    ),
    "a norm without its weight": ("rms_norm/kernel.py", "x * inverse * weight", "x * inverse", "check_rms_norm(5, 48)"),
    "a norm over the padded row": (
        "rms_norm/kernel.py",
        "/ SIZE + epsilon",
        "/ BLOCK + epsilon",
        "check_rms_norm(5, 48)",
    ),
    "a rotation the other way": (
        "rope/kernel.py",
        "first * cos - second * sin",
        "first * cos + second * sin",
        "check_rope(5, 3, 16)",
    ),
    "a rotation of dense rows only": ("rope/launcher.py", "x.stride(0)", "x.stride(1) * heads", "check_rope(5, 3, 16)"),
    "a gate that is taken for the value": (
        "silu_mul/kernel.py",
        "tl.exp(-gate)",
        "tl.exp(-up)",
        "check_silu_mul(3, 40)",
    ),
}
PROGRAM = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import sys
sys.path.insert(0, sys.argv[1])
from pagefleet_kernels.bench.elementwise import *
from pagefleet_kernels.bench.moves import *
from pagefleet_kernels.layout import FrameLayout, Precision
{check}
print("survived")
"""


@pytest.mark.parametrize(("file", "right", "wrong", "check"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a_wrong_kernel_fails(tmp_path, file, right, wrong, check):
    assert_caught(tmp_path, file, right, wrong, PROGRAM.format(check=check))

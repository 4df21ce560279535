"""The kernels compile for GPUs that are not here and do not spill; in a process without the interpreter."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from pagefleet_kernels.offline_cases import all_cases
wanted, capability = set(sys.argv[2:]), int(sys.argv[1])
found = {}
for case in all_cases():
    if case.name in wanted:
        built = case.compile(capability)
        loops = [[loop.instructions, loop.products, loop.spills] for loop in built.loops]
        found[case.name] = [built.registers, built.spill_bytes, built.shared_bytes, loops]
print(json.dumps(found))
"""


def compiled(capability, *names):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, str(capability), *names]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        (90, ["decode SmolLM2 bf16", "decode SmolLM2 fp8_e4m3", "seal Llama-3-8B fp8_e4m3 V"]),
        (90, ["decode direct Llama-3-8B fp8_e4m3", "decode SmolLM2 int8", "prefill Llama-3-8B fp8_e4m3"]),
        (90, ["seal values Llama-3-8B fp8_e4m3 V", "combine head 256", "write open frames", "copy frames"]),
        (90, ["rms_norm", "rope", "silu_mul"]),
        (80, ["decode SmolLM2 bf16", "decode SmolLM2 int8", "seal Llama-3-8B int8 K", "combine head 128"]),
    ],
    ids=["sm_90", "sm_90, other forms", "sm_90, moves", "sm_90, elementwise", "sm_80"],
)
def test_kernels_compile_without_a_gpu(capability, names):
    found = compiled(capability, *names)
    assert set(found) == set(names)
    for name, (registers, spilled, shared, loops) in found.items():
        assert registers <= 255
        assert spilled == 0, name
        assert shared <= 163 * 1024
        if name.startswith("decode"):
            assert len(loops) == 2  # sealed frames, then open ones, both on tensor cores
        if name.startswith("prefill"):
            assert len(loops) == 4  # sealed frames without and with masks, open ones, the chunk's own tokens

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
        (80, ["decode SmolLM2 bf16"]),
    ],
    ids=["sm_90", "sm_80"],
)
def test_kernels_compile_without_a_gpu(capability, names):
    found = compiled(capability, *names)
    assert set(found) == set(names)
    for name, (registers, spilled, shared, loops) in found.items():
        assert registers <= 255
        assert spilled == 0, name
        assert shared <= 100 * 1024
        if name.startswith("decode"):
            assert len(loops) == 2  # sealed frames, then open ones, both on tensor cores

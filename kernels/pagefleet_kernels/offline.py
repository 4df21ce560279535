"""Compile the kernels for a GPU that is not there, and read what the compiler says: registers, spills, shared memory.

For tests and for the table in `docs/kernels.md`; nothing here runs a kernel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop of the machine code."""

    instructions: int
    products: int
    """tensor-core instructions"""
    spills: int
    """loads and stores of local memory"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Resources of one compiled kernel."""

    registers: int
    """per thread"""
    spill_bytes: int
    """local memory per thread that ptxas added for want of registers"""
    shared_bytes: int
    """per program"""
    loops: tuple[Loop, ...]
    """innermost loops with tensor-core instructions, in the order of the code; the first one is the hot one"""


def compile_offline(
    kernel: Any, arguments: Mapping[str, str], constants: Mapping[str, Any], *, capability: int, warps: int, stages: int
) -> Compiled:
    """Compile a `triton.jit` function for `capability` (90 is sm_90).

    arguments: Triton type of each argument that is no constant. Pointers count as aligned to 16 bytes, as torch's are.
    """
    names = kernel.arg_names
    signature = {name: arguments.get(name, "constexpr") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=aligned)
    built = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages}
    )
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(built.asm["cubin"])
        cubin.flush()
        usage = _run(str(tools / "cuobjdump"), "-res-usage", cubin.name)
        sass = _run(str(tools / "nvdisasm"), "-c", cubin.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump printed no resource usage: {usage[:200]!r}")
    return Compiled(
        registers=int(found[1]),
        spill_bytes=int(found[2]),
        shared_bytes=built.metadata.shared,
        loops=tuple(loop for loop in find_loops(sass) if loop.products),
    )


def find_loops(sass: str) -> list[Loop]:
    """The innermost loops of a disassembly: from the target of each backward branch to the branch."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(opcodes)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)(.*)", line):
            target = re.search(r"`\((\.L_x_\d+)\)", found[2]) if found[1].startswith("BRA") else None
            if target and target[1] in labels:
                spans.append((labels[target[1]], len(opcodes)))
            opcodes.append(found[1].rstrip(";"))
    inner = [a for a in spans if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in spans)]
    return [_loop(opcodes[start : end + 1]) for start, end in inner]


def _loop(opcodes: list[str]) -> Loop:
    return Loop(
        instructions=len(opcodes),
        products=sum(op.startswith(("HMMA", "HGMMA")) for op in opcodes),
        spills=sum(op.startswith(("LDL", "STL")) for op in opcodes),
    )


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

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
class Compiled:
    """Resources of one compiled kernel."""

    registers: int
    """per thread"""
    spill_bytes: int
    """local memory per thread that ptxas added for want of registers"""
    shared_bytes: int
    """per program"""
    sass: str
    """disassembly"""

    def count(self, opcode: str) -> int:
        """Instructions whose opcode starts with `opcode`."""
        return len(re.findall(rf"(?m)^\s*/\*[0-9a-f]{{4,}}\*/\s+(?:@!?U?P\d+\s+)?{re.escape(opcode)}", self.sass))


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
    return Compiled(registers=int(found[1]), spill_bytes=int(found[2]), shared_bytes=built.metadata.shared, sass=sass)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

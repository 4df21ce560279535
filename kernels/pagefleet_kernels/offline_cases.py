"""The configurations that are compiled without a GPU: what `docs/kernels.md` tabulates and the tests build."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton.compiler.errors import CompilationError

from pagefleet_kernels.launch import decode_launch, prefill_launch
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.offline import Compiled, compile_offline
from pagefleet_kernels.paged_decode.kernel import combine_kernel, decode_kernel
from pagefleet_kernels.paged_decode.launcher import decode_constants
from pagefleet_kernels.paged_prefill.kernel import prefill_kernel
from pagefleet_kernels.paged_prefill.launcher import prefill_constants
from pagefleet_kernels.seal_frames.kernel import seal_kernel
from pagefleet_kernels.seal_frames.launcher import seal_constants
from pagefleet_kernels.tables import Masking

TYPES = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr", "pool16_ptr", "values_ptr"), "*bf16"),
    **dict.fromkeys(("pool32_ptr", "part_ptr", "stat_ptr"), "*fp32"),
    **dict.fromkeys(("frames_ptr", "starts_ptr", "counts_ptr", "offsets_ptr", "positions_ptr"), "*i32"),
    **dict.fromkeys(("group_starts_ptr", "layers_ptr", "open_frames_ptr", "open_starts_ptr"), "*i32"),
    **dict.fromkeys(("tile_unit", "scale_unit", "table_width", "open_width", "num_splits", "first_part"), "i32"),
    **dict.fromkeys(("num_parts", "num_sequences", "part", "opens"), "i32"),
    "open_lengths_ptr": "*i32",
    "pool8_ptr": "*u8",
    "scale_log2": "fp32",
}

LLAMA_8B = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)
SMOLLM2 = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel configuration."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    num_stages: int

    def compile(self, capability: int) -> Compiled:
        """Build it for sm_`capability`."""
        types = {name: kind for name, kind in TYPES.items() if name in self.kernel.arg_names}
        return compile_offline(
            self.kernel,
            types,
            self.constants,
            capability=capability,
            warps=self.num_warps,
            stages=self.num_stages,
        )


def decode_case(
    name: str, layout: FrameLayout, precision: Precision, *, group: int, masking: Masking | None = None
) -> Case:
    """The decode kernel as it is launched for several splits."""
    plan = decode_launch(precision, block_size=layout.block_size, head_dim=layout.head_dim)
    shape = decode_constants(layout, layout.address(0), precision, group, masking or Masking(), plan)
    constants = {**shape, "HAS_OPEN": True, "DIRECT": False, "NATIVE": True}
    return Case(
        name=f"decode {name} {precision}",
        kernel=decode_kernel,
        constants=constants,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


def prefill_case(name: str, layout: FrameLayout, precision: Precision, *, group: int) -> Case:
    """The prefill kernel as it is launched for up to eight sequences."""
    plan = prefill_launch(precision, group=group, block_size=layout.block_size, head_dim=layout.head_dim)
    shape = prefill_constants(layout, precision, group, Masking(), plan, 8)
    constants = {**shape, "HAS_RAW": True, "DIRECT": True, "NATIVE": True}
    return Case(
        name=f"prefill {name} {precision}",
        kernel=prefill_kernel,
        constants=constants,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


def seal_case(name: str, layout: FrameLayout, precision: Precision, part: int) -> Case:
    """The seal kernel, in place."""
    constants = {**seal_constants(layout, precision, part, from_open=True), "NATIVE": True}
    return Case(
        name=f"seal {name} {precision} {'KV'[part]}",
        kernel=seal_kernel,
        constants=constants,
        num_warps=4,
        num_stages=3,
    )


def all_cases() -> Iterator[Case]:
    """Every kernel that spends device time, for the two models of the docs and the odd head sizes."""
    for precision in Precision:
        yield decode_case("Llama-3-8B", LLAMA_8B, precision, group=4)
        yield decode_case("SmolLM2", SMOLLM2, precision, group=3)
        yield prefill_case("Llama-3-8B", LLAMA_8B, precision, group=4)
        for part in range(2) if precision is not Precision.BF16 else ():
            yield seal_case("Llama-3-8B", LLAMA_8B, precision, part)
    for head_dim in (80, 96, 256):
        layout = FrameLayout(num_layers=4, num_kv_heads=2, head_dim=head_dim)
        for precision in (Precision.BF16, Precision.FP8_E4M3):
            yield decode_case(f"head {head_dim}", layout, precision, group=5)
            yield prefill_case(f"head {head_dim}", layout, precision, group=1)
    masking = Masking(window=1024, sinks=4, soft_cap=50.0)
    yield decode_case("window and cap", LLAMA_8B, Precision.FP8_E4M3, group=8, masking=masking)
    combine = {"HEAD_DIM": 128, "BLOCK_D": 128, "PARTS": 32, "NATIVE": True}
    yield Case(name="combine 32 parts", kernel=combine_kernel, constants=combine, num_warps=4, num_stages=3)


def table(capability: int = 90) -> str:
    """Markdown: what the compiler says of every case, or why it does not compile it."""
    heads = ("kernel", "warps", "stages", "registers", "spilled bytes", "shared bytes", "instructions of the hot loop")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for case in all_cases():
        try:
            built = case.compile(capability)
        except (CompilationError, RuntimeError) as error:  # a conversion or an instruction that this GPU lacks
            lines.append(f"| {case.name} | {case.num_warps} | {case.num_stages} | {first_line(error)} |  |  |  |")
            continue
        hot = str(built.loops[0].instructions) if built.loops else ""
        numbers = (case.num_warps, case.num_stages, built.registers, built.spill_bytes, built.shared_bytes, hot)
        lines.append(f"| {case.name} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def first_line(error: Exception) -> str:
    """The deepest reason of a compile error, in one line."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 90))

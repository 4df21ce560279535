"""The configurations that are compiled without a GPU: what `docs/kernels.md` tabulates and the tests build."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from triton.compiler.errors import CompilationError

from pagefleet_kernels.launch import (
    decode_launch,
    decode_shared_bytes,
    plain_launch,
    prefill_launch,
    prefill_shared_bytes,
)
from pagefleet_kernels.launching import KERNELS
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.offline import Compiled, compile_offline
from pagefleet_kernels.rms_norm.kernel import rms_norm_kernel
from pagefleet_kernels.rope.kernel import rope_kernel
from pagefleet_kernels.silu_mul.kernel import silu_mul_kernel
from pagefleet_kernels.tables import Masking
from pagefleet_kernels.variants import (
    Model,
    Variant,
    combine_variant,
    copy_variant,
    decode_variant,
    prefill_variant,
    seal_variant,
    write_open_variant,
)

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
OWN_TYPES = {
    "copy_frames_kernel": {"pool32_ptr": "*i32", "sources_ptr": "*i32", "targets_ptr": "*i32"},
    "write_open_kernel": {"slots_ptr": "*i32", "tile_base": "i32"},
    "rms_norm_kernel": {"x_ptr": "*bf16", "weight_ptr": "*bf16", "epsilon": "fp32"},
    "rope_kernel": {"x_ptr": "*bf16", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "stride": "i32"},
    "silu_mul_kernel": {"gate_up_ptr": "*bf16"},
}
ODD_PRECISIONS = (Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4)

LLAMA_8B = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)
SMOLLM2 = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel configuration."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 3
    residents: int | None = None
    """Programs that a multiprocessor is expected to hold."""
    shared_bound: int | None = None
    """Bytes of shared memory that `launch` expects at most."""

    def compile(self, capability: int) -> Compiled:
        """Build it for sm_`capability`."""
        known = TYPES | OWN_TYPES.get(self.kernel.__name__, {})
        types = {name: kind for name, kind in known.items() if name in self.kernel.arg_names}
        return compile_offline(
            self.kernel,
            types,
            self.constants,
            capability=capability,
            warps=self.num_warps,
            stages=self.num_stages,
        )


def case(name: str, variant: Variant, *, residents: int | None = None, shared_bound: int | None = None) -> Case:
    """A kernel that touches the pool."""
    constants = variant.options(native=True)
    del constants["num_warps"], constants["num_stages"]
    return Case(
        name=name,
        kernel=KERNELS[variant.kernel],
        constants=constants,
        num_warps=variant.num_warps,
        num_stages=variant.num_stages,
        residents=residents,
        shared_bound=shared_bound,
    )


def decode_case(name: str, model: Model, precision: Precision, *, direct: bool = False) -> Case:
    """The decode kernel: for several shares, or for one that writes the result."""
    shape = {"block_size": model.layout.block_size, "head_dim": model.layout.head_dim}
    plan = decode_launch(precision, **shape)
    form = "decode direct" if direct else "decode"
    variant = decode_variant(model, precision, direct=direct)
    bound = decode_shared_bytes(plan, precision, **shape)
    return case(f"{form} {name} {precision}", variant, residents=plan.residents, shared_bound=bound)


def prefill_case(name: str, model: Model, precision: Precision, *, direct: bool = True) -> Case:
    """The prefill kernel: alone, or as one of several precisions."""
    shape = {"block_size": model.layout.block_size, "head_dim": model.layout.head_dim}
    plan = prefill_launch(precision, group=model.group, **shape)
    form = "prefill" if direct else "prefill merged"
    variant = prefill_variant(model, precision, direct=direct)
    bound = prefill_shared_bytes(plan, precision, **shape)
    return case(f"{form} {name} {precision}", variant, shared_bound=bound)


def seal_case(name: str, layout: FrameLayout, precision: Precision, part: int, *, from_open: bool = True) -> Case:
    """The seal kernel: in place, or from values."""
    form = "seal" if from_open else "seal values"
    variant = seal_variant(layout, precision, part, from_open=from_open)
    return case(f"{form} {name} {precision} {'KV'[part]}", variant)


def elementwise_cases() -> Iterator[Case]:
    """The model's elementwise operations in Llama-3-8B's shape, and what moves frames."""
    yield case("write open frames", write_open_variant(LLAMA_8B))
    yield case("copy frames", copy_variant(LLAMA_8B))
    for head_dim in (64, 128, 256):
        yield case(f"combine head {head_dim}", combine_variant(replace(LLAMA_8B, head_dim=head_dim)))
    norm = {"SIZE": 4096, "BLOCK": 4096, "NATIVE": True}
    yield Case(name="rms_norm", kernel=rms_norm_kernel, constants=norm, num_warps=plain_launch("rms_norm").num_warps)
    turn = {"HEADS": 32, "HALF": 64, "BLOCK_H": 32, "BLOCK": 64, "NATIVE": True}
    yield Case(name="rope", kernel=rope_kernel, constants=turn, num_warps=plain_launch("rope").num_warps)
    plan = plain_launch("silu_mul")
    gate = {"SIZE": 14336, "BLOCK": plan.block, "NATIVE": True}
    yield Case(name="silu_mul", kernel=silu_mul_kernel, constants=gate, num_warps=plan.num_warps)


def odd_cases() -> Iterator[Case]:
    """Head sizes and frame blocks beyond the usual, and every mask."""
    for head_dim in (80, 96, 256):
        layout = FrameLayout(num_layers=4, num_kv_heads=2, head_dim=head_dim)
        for precision in ODD_PRECISIONS:
            yield decode_case(f"head {head_dim}", Model(layout=layout, group=5), precision)
            yield prefill_case(f"head {head_dim}", Model(layout=layout, group=1), precision)
        for precision in (Precision.INT8, Precision.INT4):
            for part in range(2):
                yield seal_case(f"head {head_dim}", layout, precision, part)
    for block_size in (32, 64):
        layout = replace(LLAMA_8B, block_size=block_size)
        for precision in ODD_PRECISIONS:
            yield decode_case(f"blocks of {block_size}", Model(layout=layout, group=4), precision)
            yield prefill_case(f"blocks of {block_size}", Model(layout=layout, group=4), precision)
    masking = Masking(window=1024, sinks=4, soft_cap=50.0)
    for precision in (Precision.FP8_E4M3, Precision.BF16):
        yield decode_case("window and cap", Model(layout=LLAMA_8B, group=8, masking=masking), precision)
        yield prefill_case("window and cap", Model(layout=LLAMA_8B, group=8, masking=masking), precision)


def all_cases() -> Iterator[Case]:
    """Every kernel of the two models of the docs in every form that a step can take, then the odd ones."""
    llama, smollm = Model(layout=LLAMA_8B, group=4), Model(layout=SMOLLM2, group=3)
    for precision in Precision:
        for direct in (False, True):
            yield decode_case("Llama-3-8B", llama, precision, direct=direct)
        yield decode_case("SmolLM2", smollm, precision)
        for direct in (True, False):
            yield prefill_case("Llama-3-8B", llama, precision, direct=direct)
        for part in range(2) if precision is not Precision.BF16 else ():
            for from_open in (True, False):
                yield seal_case("Llama-3-8B", LLAMA_8B, precision, part, from_open=from_open)
    yield from elementwise_cases()
    yield from odd_cases()


def table(capability: int = 90) -> str:
    """Markdown: what the compiler says of every case, or why it does not compile it."""
    heads = ("kernel", "warps", "stages", "registers", "spilled bytes", "shared bytes", "instructions of the hot loop")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for one in all_cases():
        try:
            built = one.compile(capability)
        except (CompilationError, RuntimeError) as error:  # a conversion or an instruction that this GPU lacks
            lines.append(f"| {one.name} | {one.num_warps} | {one.num_stages} | {first_line(error)} |  |  |  |")
            continue
        hot = str(built.loops[0].instructions) if built.loops else ""
        numbers = (one.num_warps, one.num_stages, built.registers, built.spill_bytes, built.shared_bytes, hot)
        lines.append(f"| {one.name} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def first_line(error: Exception) -> str:
    """The deepest reason of a compile error, in one line."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 90))

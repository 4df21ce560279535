"""Prefill attention: TFLOP/s beside torch's FlashAttention on the same shape without paging or quantisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pagefleet_kernels.bench.decode import Bench, tables
from pagefleet_kernels.bench.timing import measure_s
from pagefleet_kernels.launch import PrefillLaunch, prefill_launch
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.paged_prefill import launcher
from pagefleet_kernels.tables import ChunkTable, FrameTable, Masking, OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One measured case."""

    kind: str
    prefix: int
    chunk: int
    milliseconds: float
    teraflops: float
    launch: str


def _flops(bench: Bench, prefix: int, chunk: int) -> float:
    seen = chunk * prefix + chunk * (chunk + 1) / 2
    return 4.0 * bench.heads * bench.layout.head_dim * seen


def prefill_case(
    bench: Bench, precision: Precision, prefix: int, chunk: int, *, launch: PrefillLaunch | None = None
) -> PrefillRow:
    """One chunk of one sequence, after `prefix` tokens, all groups before a query's own read from sealed frames."""
    layout, device = bench.layout, bench.device
    size = layout.tokens_per_frame(precision)
    prefix = prefix // size * size
    sealed, _ = tables(bench, precision, 1, prefix + chunk)
    sealed = FrameTable(precision=precision, frames=sealed.frames, starts=sealed.starts, counts=sealed.counts)
    positions = torch.arange(prefix, prefix + chunk, dtype=torch.int32, device=device)
    own = OpenTable(
        frames=torch.zeros((1, 1), dtype=torch.int32, device=device),
        starts=torch.tensor([prefix], dtype=torch.int32, device=device),
        lengths=torch.zeros(1, dtype=torch.int32, device=device),
    )
    queries = torch.randn((chunk, bench.heads, layout.head_dim), device=device).bfloat16()
    keys, values = torch.randn((2, chunk, layout.num_kv_heads, layout.head_dim), device=device).bfloat16()
    chunks = ChunkTable(
        offsets=torch.tensor([0, chunk], dtype=torch.int32, device=device),
        positions=positions,
        group_starts=positions // size * size,
        sealed=[sealed],
        open=own,
    )

    def run() -> torch.Tensor:
        return launcher.paged_prefill(
            queries, keys, values, chunks, bench.pool, layout, 0, layout.head_dim**-0.5, Masking(), launch=launch
        )

    seconds = measure_s(run, device=device, repeats=5)
    used = launch or prefill_launch(
        precision,
        group=bench.heads // layout.num_kv_heads,
        block_size=layout.block_size,
        head_dim=layout.head_dim,
    )
    return PrefillRow(
        kind=str(precision),
        prefix=prefix,
        chunk=chunk,
        milliseconds=round(seconds * 1e3, 4),
        teraflops=round(_flops(bench, prefix, chunk) / seconds / 1e12, 1),
        launch=f"rows {used.rows}, frames {used.frames}, warps {used.num_warps}, stages {used.num_stages}",
    )


def flash_case(bench: Bench, chunk: int) -> PrefillRow:
    """torch's FlashAttention over a whole prompt of `chunk` tokens, keys and values expanded to all heads."""
    shape = (1, bench.heads, chunk, bench.layout.head_dim)
    queries, keys, values = torch.randn((3, *shape), device=bench.device).bfloat16()

    def run() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if bench.device != "cpu" else SDPBackend.MATH):
        seconds = measure_s(run, device=bench.device, repeats=5)
    return PrefillRow(
        kind="torch flash",
        prefix=0,
        chunk=chunk,
        milliseconds=round(seconds * 1e3, 4),
        teraflops=round(_flops(bench, 0, chunk) / seconds / 1e12, 1),
        launch="",
    )

"""One decode step of a Llama-3-8B-shaped model with random weights, as a graph: the kernels' worth end to end."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_kernels.bench.decode import Bench, decode_case, tables
from pagefleet_kernels.bench.timing import measure_s
from pagefleet_kernels.layout import Precision
from pagefleet_kernels.paged_decode import paged_decode
from pagefleet_kernels.rms_norm import rms_norm
from pagefleet_kernels.rope import rope
from pagefleet_kernels.silu_mul import silu_mul
from pagefleet_kernels.write_open import write_open


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One measured case."""

    precision: str
    batch: int
    tokens: int
    step_ms: float
    tokens_per_s: float
    attention_ms: float
    products_ms: float
    """the step's matrix products alone"""
    rest_share: float
    """of the step: what is neither attention nor matrix products"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Random weights; every layer has its own."""

    qkv: list[torch.Tensor]
    out: list[torch.Tensor]
    gate_up: list[torch.Tensor]
    down: list[torch.Tensor]
    norm: torch.Tensor
    embedding: torch.Tensor


def make_weights(bench: Bench, *, hidden: int, middle: int, vocabulary: int) -> Weights:
    """Normal weights of standard deviation 0.02."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty((rows, columns), dtype=torch.bfloat16, device=bench.device).normal_(std=0.02)

    layout = bench.layout
    width = (bench.heads + 2 * layout.num_kv_heads) * layout.head_dim
    layers = range(layout.num_layers)
    return Weights(
        qkv=[matrix(width, hidden) for _ in layers],
        out=[matrix(hidden, bench.heads * layout.head_dim) for _ in layers],
        gate_up=[matrix(2 * middle, hidden) for _ in layers],
        down=[matrix(hidden, middle) for _ in layers],
        norm=torch.ones(hidden, dtype=torch.bfloat16, device=bench.device),
        embedding=matrix(vocabulary, hidden),
    )


def step_case(bench: Bench, weights: Weights, precision: Precision, batch: int, tokens: int) -> ModelRow:
    """Seconds of one step for `batch` sequences of `tokens` tokens each, greedy."""
    layout, device = bench.layout, bench.device
    sealed, own = tables(bench, precision, batch, tokens)
    frames, slots = own.frames[:, 0].contiguous(), own.lengths - 1
    half = layout.head_dim // 2
    angles = own.starts[:, None] * (500_000.0 ** (-torch.arange(half, device=device) / half))
    cos, sin = angles.cos().float(), angles.sin().float()
    ids = torch.zeros(batch, dtype=torch.int64, device=device)
    heads = bench.heads + 2 * layout.num_kv_heads
    nothing = torch.zeros((batch, bench.heads * layout.head_dim), dtype=torch.bfloat16, device=device)

    def step(attention: bool, rest: bool) -> torch.Tensor:
        x = weights.embedding[ids]
        for layer in range(layout.num_layers):
            h = rms_norm(x, weights.norm, 1e-5) if rest else x
            qkv = torch.nn.functional.linear(h, weights.qkv[layer]).view(batch, heads, layout.head_dim)
            mixed = nothing
            if rest:
                queries = rope(qkv[:, : bench.heads], cos, sin)
                keys = rope(qkv[:, bench.heads : bench.heads + layout.num_kv_heads], cos, sin)
                values = qkv[:, bench.heads + layout.num_kv_heads :]
                write_open(bench.pool, layout, layer, frames, slots, keys, values)
            if attention:
                mixed = paged_decode(
                    queries, bench.pool, layout, layer, [sealed], own, scale=layout.head_dim**-0.5
                ).flatten(1)
            x = x + torch.nn.functional.linear(mixed, weights.out[layer])
            h = rms_norm(x, weights.norm, 1e-5) if rest else x
            h = torch.nn.functional.linear(h, weights.gate_up[layer])
            h = silu_mul(h) if rest else h[:, : h.shape[1] // 2]
            x = x + torch.nn.functional.linear(h, weights.down[layer])
        logits = torch.nn.functional.linear(rms_norm(x, weights.norm, 1e-5), weights.embedding)
        return logits.argmax(-1)

    whole = measure_s(lambda: step(True, True), device=device)
    products = measure_s(lambda: step(False, False), device=device)
    attention = decode_case(bench, precision, batch, tokens).microseconds * 1e-6 * layout.num_layers
    return ModelRow(
        precision=str(precision),
        batch=batch,
        tokens=tokens,
        step_ms=round(whole * 1e3, 3),
        tokens_per_s=round(batch / whole, 1),
        attention_ms=round(attention * 1e3, 3),
        products_ms=round(products * 1e3, 3),
        rest_share=round(max(0.0, whole - products - attention) / whole, 3),
    )

"""FlashInfer beside our kernels, where it is installed: BF16 decode over pages of 16 tokens, and a whole prompt."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from pagefleet_kernels.bench.decode import Bench
from pagefleet_kernels.bench.timing import measure_s

_PAGE = 16
_WORKSPACE = 256 * 2**20


def is_installed() -> bool:
    return find_spec("flashinfer") is not None


def decode_case(bench: Bench, batch: int, tokens: int) -> dict[str, Any]:
    """One layer of decode attention, as `bench.decode.decode_case` reports it; pages in scattered order."""
    library, layout, device = import_module("flashinfer"), bench.layout, bench.device
    width = tokens // _PAGE
    pages = torch.randn((batch * width, 2, _PAGE, layout.num_kv_heads, layout.head_dim), device=device).bfloat16()
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(_WORKSPACE, dtype=torch.uint8, device=device), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        torch.arange(0, (batch + 1) * width, width, dtype=torch.int32, device=device),
        torch.randperm(batch * width, device=device).int(),
        torch.full((batch,), _PAGE, dtype=torch.int32, device=device),
        bench.heads, layout.num_kv_heads, layout.head_dim, _PAGE,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    queries = torch.randn((batch, bench.heads, layout.head_dim), device=device).bfloat16()
    seconds = measure_s(lambda: wrapper.run(queries, pages), device=device, graph=False, repeats=7)
    size = pages.numel() * 2
    return {
        "what": "decode bf16",
        "batch": batch,
        "tokens": tokens,
        "microseconds": round(seconds * 1e6, 2),
        "gigabytes_per_s": round(size / seconds / 1e9, 1),
        "copy_share": round(size / seconds / bench.copy_bytes_per_s, 3),
    }


def prefill_case(bench: Bench, chunk: int) -> dict[str, Any]:
    """A whole prompt, causal, without paging."""
    library, layout, device = import_module("flashinfer"), bench.layout, bench.device
    queries = torch.randn((chunk, bench.heads, layout.head_dim), device=device).bfloat16()
    keys, values = torch.randn((2, chunk, layout.num_kv_heads, layout.head_dim), device=device).bfloat16()
    seconds = measure_s(
        lambda: library.single_prefill_with_kv_cache(queries, keys, values, causal=True),
        device=device, graph=False, repeats=5,
    )  # fmt: skip
    flops = 4.0 * bench.heads * layout.head_dim * chunk * (chunk + 1) / 2
    return {
        "what": "prefill bf16",
        "batch": 1,
        "tokens": chunk,
        "microseconds": round(seconds * 1e6, 2),
        "teraflops": round(flops / seconds / 1e12, 1),
    }

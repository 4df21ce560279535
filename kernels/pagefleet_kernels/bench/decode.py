"""Decode attention: seconds and share of the copy bandwidth, over lengths, batches and precisions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pagefleet_kernels.bench.timing import measure_s
from pagefleet_kernels.launch import DecodeLaunch, decode_launch
from pagefleet_kernels.layout import Address, FrameLayout, Precision
from pagefleet_kernels.paged_decode import launcher
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A pool of random values and the model shape that reads it."""

    pool: torch.Tensor
    layout: FrameLayout
    heads: int
    device: str
    copy_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """One measured case; time and bytes are those of one layer."""

    precision: str
    batch: int
    tokens: int
    microseconds: float
    gigabytes_per_s: float
    copy_share: float
    launch: str
    splits: int


def make_bench(layout: FrameLayout, *, heads: int, pool_bytes: int, device: str, copy_bytes_per_s: float) -> Bench:
    """A pool of `pool_bytes` filled with normal bf16 values."""
    num_frames = pool_bytes // layout.frame_bytes
    pool = torch.empty((num_frames, layout.frame_bytes), dtype=torch.uint8, device=device)
    for start in range(0, num_frames, 4096):
        pool[start : start + 4096].view(torch.bfloat16).normal_()
    return Bench(pool=pool, layout=layout, heads=heads, device=device, copy_bytes_per_s=copy_bytes_per_s)


def tables(bench: Bench, precision: Precision, batch: int, tokens: int) -> tuple[FrameTable, OpenTable]:
    """Sealed frames for `tokens`, scattered over the pool (reused when it is too small), and 5 open tokens."""
    size = bench.layout.tokens_per_frame(precision)
    width, num_frames = max(1, tokens // size), bench.pool.shape[0]
    order = torch.randperm(num_frames, generator=torch.Generator().manual_seed(0))
    frames = order[torch.arange(batch * width) % num_frames].view(batch, width)
    starts = (torch.arange(width) * size).expand(batch, width)
    sealed = FrameTable(
        precision=precision,
        frames=frames.int().to(bench.device),
        starts=starts.int().contiguous().to(bench.device),
        counts=torch.full((batch,), width, dtype=torch.int32, device=bench.device),
    )
    own = OpenTable(
        frames=order[torch.arange(batch) % num_frames].view(batch, 1).int().to(bench.device),
        starts=torch.full((batch,), width * size, dtype=torch.int32, device=bench.device),
        lengths=torch.full((batch,), 5, dtype=torch.int32, device=bench.device),
    )
    return sealed, own


def decode_case(
    bench: Bench,
    precision: Precision,
    batch: int,
    tokens: int,
    *,
    launch: DecodeLaunch | None = None,
    splits: int | None = None,
    addresses: list[Address] | None = None,
) -> DecodeRow:
    """Time one decode step of attention over all layers, as one graph; report one layer."""
    layout = bench.layout
    sealed, own = tables(bench, precision, batch, tokens)
    queries = torch.randn((batch, bench.heads, layout.head_dim), device=bench.device).bfloat16()
    addresses = addresses or [layout.address(layer) for layer in range(layout.num_layers)]

    def run() -> None:
        for address in addresses:
            launcher.paged_decode(
                queries, bench.pool, layout, 0, [sealed], own, layout.head_dim**-0.5, Masking(),
                launch=launch, splits=splits, address=address,
            )  # fmt: skip

    total_bytes = sealed.frames.numel() * layout.layer_bytes
    repeats = 3 if total_bytes > 2**32 else 7
    seconds = measure_s(run, device=bench.device, repeats=repeats) / len(addresses)
    used = launch or decode_launch(precision, block_size=layout.block_size, head_dim=layout.head_dim)
    return DecodeRow(
        precision=str(precision),
        batch=batch,
        tokens=tokens,
        microseconds=round(seconds * 1e6, 2),
        gigabytes_per_s=round(total_bytes / seconds / 1e9, 1),
        copy_share=round(total_bytes / seconds / bench.copy_bytes_per_s, 3),
        launch=f"frames {used.frames}, warps {used.num_warps}, stages {used.num_stages}",
        splits=splits or launcher.choose_splits(sealed, used, layout),
    )


def layer_major(layout: FrameLayout, num_frames: int) -> list[Address]:
    """Addresses of a pool in which all frames of one layer lie together, each layer's scales after its tiles."""
    stride = -(-(layout.layer_bytes + 2 * layout.num_kv_heads * 4) // 256) * 256
    return [
        Address(
            frame_stride=stride,
            tile_base=layer * num_frames * stride,
            scale_base=layer * num_frames * stride + layout.layer_bytes,
        )
        for layer in range(layout.num_layers)
    ]


def one_layer(bench: Bench) -> Bench:
    """The same pool read as frames of one layer."""
    layout = replace(bench.layout, num_layers=1)
    flat = bench.pool.flatten()
    count = flat.numel() // layout.frame_bytes
    pool = flat[: count * layout.frame_bytes].view(count, layout.frame_bytes)
    return replace(bench, pool=pool, layout=layout)

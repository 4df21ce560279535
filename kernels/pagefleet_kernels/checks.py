"""One check per op, on any device: run it in a poisoned pool and compare with arithmetic that shares no code with it.

Tests call these in Triton's interpreter, `check_gpu.py` calls them on a GPU. Each raises AssertionError that says what
is off, and returns the largest error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefleet_kernels.codec import decode_tiles
from pagefleet_kernels.copy_frames import copy_frames
from pagefleet_kernels.dispatch import Impl
from pagefleet_kernels.guards import GuardedMemory, place, require
from pagefleet_kernels.layout import FrameLayout, Part, Precision
from pagefleet_kernels.paged_decode import launcher as decode_launcher
from pagefleet_kernels.paged_prefill import launcher as prefill_launcher
from pagefleet_kernels.pool import scale_view, tile_view
from pagefleet_kernels.seal_frames import seal_frames, seal_open_frames
from pagefleet_kernels.tables import ChunkTable, FrameTable, Masking, OpenTable
from pagefleet_kernels.testing import POISON, Cache
from pagefleet_kernels.tolerance import bounded_attention
from pagefleet_kernels.write_open import write_open

CODE_STEP = {Precision.FP8_E4M3: 2.0**-3, Precision.FP8_E5M2: 2.0**-2}
"""One step of an FP8 code relative to its value: Triton's interpreter rounds ties away from zero, hardware to even."""


def check_decode(
    layout: FrameLayout,
    lengths: Sequence[int],
    mix: Sequence[Precision],
    *,
    heads: int,
    masking: Masking | None = None,
    splits: int | None = None,
    device: str = "cpu",
    num_frames: int = 80,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    far: bool = False,
) -> float:
    """Decode one token of each sequence; all but the open group of a sequence is sealed. Length 0 is a padding row.

    `splits` overrides how many shares the kernel cuts the sealed frames into. `dtype` is the result's: fp32 shows what
    rounding it hides. `far` puts the frames beyond 2^33 bytes.
    """
    cache = Cache(layout, num_frames, seed=seed)
    for length in lengths:
        cache.add(length, list(mix))
    sealed_until = [s.group_of(s.length - 1)[0] if s.length else 0 for s in cache.sequences]
    for sequence, until in zip(cache.sequences, sealed_until, strict=True):
        cache.fill(sequence, until, sequence.length)
    sealed, open_table = cache.tables(sealed_until, list(lengths))
    masking, scale, layer = masking or Masking(), layout.head_dim**-0.5, layout.num_layers - 1
    queries = torch.randn(len(lengths), heads, layout.head_dim, generator=cache.generator).bfloat16().to(dtype)
    pool, memory = place(cache.pool, device, far=far), GuardedMemory()
    tables = [pool.table(t) for t in sealed], pool.open_table(open_table)
    got = decode_launcher.paged_decode(
        queries.to(device), pool.whole, layout, layer, *tables, scale, masking, splits=splits, allocate=memory
    ).cpu()
    memory.check()
    require(torch.equal(pool.frames(), cache.pool), "attention wrote into the pool")
    worst = 0.0
    for row, sequence in enumerate(cache.sequences):
        if sequence.length == 0:
            require(bool((got[row] == 0).all()), "a padding row is not zero")
            continue
        seen = cache.seen(sequence, layer, sequence.length - 1)
        bound = bounded_attention(queries[row], seen, scale, masking, dtype)
        worst = max(worst, _close(got[row], *bound, f"sequence of {sequence.length} tokens"))
    return worst


def check_prefill(
    layout: FrameLayout,
    chunks: Sequence[tuple[int, int]],
    mix: Sequence[Precision],
    *,
    heads: int,
    masking: Masking | None = None,
    device: str = "cpu",
    num_frames: int = 80,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    far: bool = False,
) -> float:
    """Prefill chunks (start, end); the groups that end inside a chunk are sealed before, as the engine does."""
    cache = Cache(layout, num_frames, seed=seed)
    sealed, open_table = _before_chunks(cache, chunks, mix)
    masking, scale, layer = masking or Masking(), layout.head_dim**-0.5, layout.num_layers - 1
    pieces = list(zip(cache.sequences, chunks, strict=True))
    rows = [(s, p) for s, (a, b) in pieces for p in range(a, b)]
    sizes = torch.tensor([0, *(b - a for a, b in chunks)])
    queries = torch.randn(len(rows), heads, layout.head_dim, generator=cache.generator).bfloat16().to(dtype)
    pool, memory = place(cache.pool, device, far=far), GuardedMemory()
    got = prefill_launcher.paged_prefill(
        queries.to(device),
        torch.cat([s.keys[a:b] + layer for s, (a, b) in pieces]).to(device),
        torch.cat([s.values[a:b] - layer for s, (a, b) in pieces]).to(device),
        ChunkTable(
            offsets=sizes.cumsum(0).int().to(device),
            positions=torch.tensor([p for _, p in rows], dtype=torch.int32, device=device),
            group_starts=torch.tensor([s.group_of(p)[0] for s, p in rows], dtype=torch.int32, device=device),
            sealed=[pool.table(t) for t in sealed],
            open=pool.open_table(open_table),
        ),
        pool.whole,
        layout,
        layer,
        scale,
        masking,
        allocate=memory,
    ).cpu()
    memory.check()
    require(torch.equal(pool.frames(), cache.pool), "attention wrote into the pool")
    worst = 0.0
    for row, (sequence, position) in enumerate(rows):
        bound = bounded_attention(queries[row], cache.seen(sequence, layer, position), scale, masking, dtype)
        worst = max(worst, _close(got[row], *bound, f"position {position} of {sequence.length}"))
    return worst


def _before_chunks(
    cache: Cache, chunks: Sequence[tuple[int, int]], mix: Sequence[Precision]
) -> tuple[list[FrameTable], OpenTable]:
    """Fill the cache with what chunks (start, end) find: also the groups that they complete."""
    sealed_until, begins = [], [start for start, _ in chunks]
    for start, end in chunks:
        sequence = cache.add(end, list(mix))
        sealed_until.append(sequence.group_of(start)[0])
        cache.fill(sequence, sealed_until[-1], start)
    _, open_table = cache.tables(sealed_until, begins)
    for sequence, before in zip(cache.sequences, sealed_until, strict=True):
        for first, size, precision in sequence.groups:
            if first >= before and first + size <= sequence.length:
                cache.seal(sequence, first, size, precision)
    return cache.tables(sealed_until, begins)[0], open_table


def check_seal(
    layout: FrameLayout,
    precision: Precision,
    *,
    from_open: bool,
    impl: Impl = "triton",
    device: str = "cpu",
    far: bool = False,
) -> float:
    """Seal two groups, from values or in place; compare codes and scales with the reference, the rest with before."""
    size, opens = layout.tokens_per_frame(precision), layout.open_frames_per_group(precision)
    generator = torch.Generator().manual_seed(3)
    shape = (2, 2, size, layout.num_kv_heads, layout.head_dim)
    tokens = torch.randn(shape, generator=generator).bfloat16() * 3
    frames = torch.arange(2 * opens).view(opens, 2).T + 1
    pool = torch.full((2 * opens + 2, layout.frame_bytes), POISON, dtype=torch.uint8)
    position = torch.arange(size)
    layers = range(layout.num_layers)
    for layer in layers if from_open else ():
        for group in range(2):
            target = frames[group][position // layout.block_size]
            slots = position % layout.block_size
            write_open(pool, layout, layer, target, slots, tokens[0, group], tokens[1, group], impl="reference")
    want, got = pool.clone(), place(pool, device, far=far)
    if from_open:
        seal_open_frames(want, layout, layers, precision, frames, impl="reference")
        seal_open_frames(got.whole, layout, layers, precision, got.ids(frames), impl=impl)
    else:
        for layer in layers:
            seal_frames(want, layout, layer, precision, frames[:, 0], *tokens, impl="reference")
            first, moved = got.ids(frames[:, 0]), tokens.to(device)
            seal_frames(got.whole, layout, layer, precision, first, *moved, impl=impl)
    return _same_frames(got.frames(), want, pool, layout, precision, frames[:, 0])


def _same_frames(
    got: torch.Tensor,
    want: torch.Tensor,
    before: torch.Tensor,
    layout: FrameLayout,
    precision: Precision,
    frames: torch.Tensor,
) -> float:
    others = torch.ones(got.shape[0], dtype=torch.bool)
    others[frames] = False
    require(bool((got[others] == before[others]).all()), "sealing wrote into another frame")
    require(torch.equal(scale_view(got, layout)[frames], scale_view(want, layout)[frames]), "another fp32 scale")
    worst = 0.0
    for part in Part:
        decoded = [
            decode_tiles(tile_view(p, layout)[frames][:, :, part], scale_view(p, layout)[frames][:, :, part], part,
                         precision, layout)
            for p in (got, want)
        ]  # fmt: skip
        error = (decoded[0] - decoded[1]).abs()
        allowed = decoded[1].abs() * CODE_STEP.get(precision, 0.0)
        require(bool((error <= allowed).all()), f"{part.name} differ by up to {float(error.max()):.4g}")
        require(float((error > 0).float().mean()) < 0.01, f"{part.name}: more than rare ties differ")
        worst = max(worst, float(error.max()))
    return worst


def check_write_open(layout: FrameLayout, *, impl: Impl = "triton", device: str = "cpu", far: bool = False) -> float:
    """Write tokens, one of them padding, and compare the whole pool with the reference."""
    generator = torch.Generator().manual_seed(4)
    keys, values = torch.randn((2, 4, layout.num_kv_heads, layout.head_dim), generator=generator).bfloat16()
    frames = torch.tensor([3, -1, 0, 3], dtype=torch.int32)
    slots = torch.tensor([0, 5, layout.block_size - 1, 2], dtype=torch.int32)
    want = torch.full((4, layout.frame_bytes), POISON, dtype=torch.uint8)
    got = place(want, device, far=far)
    layer = layout.num_layers - 1
    write_open(want, layout, layer, frames, slots, keys, values, impl="reference")
    moved = slots.to(device), keys.to(device), values.to(device)
    write_open(got.whole, layout, layer, got.ids(frames), *moved, impl=impl)
    require(torch.equal(got.frames(), want), "the pool differs")
    return 0.0


def check_copy(layout: FrameLayout, *, impl: Impl = "triton", device: str = "cpu", far: bool = False) -> float:
    """Copy two frames and compare the whole pool."""
    before = torch.randint(0, 256, (5, layout.frame_bytes), dtype=torch.uint8)
    want = before.clone()
    want[[4, 1]] = before[[0, 3]]
    got = place(before, device, far=far)
    sources, targets = got.ids(torch.tensor([0, 3])), got.ids(torch.tensor([4, 1]))
    copy_frames(got.whole, layout, sources, targets, impl=impl)
    require(torch.equal(got.frames(), want), "the pool differs")
    return 0.0


def _close(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor, what: str) -> float:
    """The largest error; none may be beyond its bound."""
    require(bool(got.isfinite().all()), f"{what}: not finite")
    error = (got.double() - want).abs()
    worst = int((error / allowed).argmax())
    if not bool((error <= allowed).all()):
        found, bound = float(error.flatten()[worst]), float(allowed.flatten()[worst])
        raise AssertionError(f"{what}: error {found:.4g}, allowed {bound:.4g}")
    return float(error.max())

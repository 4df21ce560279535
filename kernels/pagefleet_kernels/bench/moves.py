"""Checks of what moves frames: demotion, swap by the byte, and every op in frames far beyond 32-bit offsets."""

from __future__ import annotations

import torch

from pagefleet_kernels.copy_frames import copy_frames, frames_from_host, frames_to_host
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode import launcher as decode
from pagefleet_kernels.paged_prefill import paged_prefill
from pagefleet_kernels.read_frames import read_frames
from pagefleet_kernels.seal_frames import demote_frames, seal_frames, seal_open_frames
from pagefleet_kernels.tables import ChunkTable, FrameTable, Masking, OpenTable
from pagefleet_kernels.testing import POISON
from pagefleet_kernels.write_open import write_open

CODE_STEP = {Precision.FP8_E4M3: 2.0**-3, Precision.FP8_E5M2: 2.0**-2}
"""One step of a code relative to its value: interpreter and hardware round ties differently."""
FAR_BYTES = 2**33
"""Beyond it offsets in bytes, in bf16 and in fp32 elements all exceed 2^31."""


def check_demote(layout: FrameLayout, precision: Precision, *, device: str = "cpu") -> float:
    """Demote two runs of BF16 frames, in scattered order; compare with the reference. Other frames stay as they are."""
    run = layout.open_frames_per_group(precision)
    frames = torch.arange(2 * run).view(run, 2).T.contiguous().int() + 1
    before = torch.full((2 * run + 2, layout.frame_bytes), POISON, dtype=torch.uint8)
    values = torch.randn((2 * run, layout.frame_bytes // 2), generator=torch.Generator().manual_seed(8)).bfloat16()
    before[1:-1] = values.view(torch.uint8)
    want, got = before.clone(), before.to(device, copy=True)
    demote_frames(want, layout, precision, frames, impl="reference")
    demote_frames(got, layout, precision, frames.to(device), impl="triton")
    moved, targets, worst = got.cpu(), frames[:, 0], 0.0
    others = torch.ones(len(before), dtype=torch.bool)
    others[targets.long()] = False
    require(torch.equal(moved[others], before[others]), "demotion wrote into another frame")
    for layer in range(layout.num_layers):
        for one, other in zip(*(read_frames(p, layout, layer, precision, targets) for p in (moved, want)), strict=True):
            error = (one - other).abs()
            require(bool((error <= other.abs() * CODE_STEP[precision]).all()), "values differ by more than a code")
            require(float((error > 0).float().mean()) < 0.01, "more than rare ties differ")
            worst = max(worst, float(error.max()))
    return worst


def check_swap(layout: FrameLayout, count: int, *, device: str = "cpu") -> float:
    """Scattered frames to pinned memory and back to other frames: every byte arrives, and no other changes."""
    generator = torch.Generator().manual_seed(9)
    before = torch.randint(0, 256, (3 * count, layout.frame_bytes), dtype=torch.uint8, generator=generator)
    order = torch.randperm(3 * count, generator=generator).tolist()
    sources, targets, slots = order[:count], order[count : 2 * count], list(reversed(range(count)))
    pool = before.to(device, copy=True)
    host = torch.zeros((count + 1, layout.frame_bytes), dtype=torch.uint8, pin_memory=device != "cpu")
    frames_to_host(pool, layout, host, sources, slots)
    _wait(device)
    require(torch.equal(host[slots], before[sources]), "other bytes arrived in host memory")
    require(not bool(host[count:].any()), "a slot that was not named has changed")
    frames_from_host(pool, layout, host, targets, slots)
    _wait(device)
    want = before.clone()
    want[targets] = before[sources]
    require(torch.equal(pool.cpu(), want), "other bytes came back")
    return 0.0


def check_far(layout: FrameLayout, precision: Precision, *, far_bytes: int = FAR_BYTES, device: str = "cpu") -> float:
    """All ops in the frames after the first `far_bytes` of a pool must do what they do in the first frames of a small
    one: the same bytes, the same attention."""
    base, used = far_bytes // layout.frame_bytes + 1, _frames_used(layout, precision)
    found = []
    for first in (0, base):
        pool = torch.empty((first + used, layout.frame_bytes), dtype=torch.uint8, device=device)
        pool[first:] = POISON
        attention = _all_ops(pool, layout, precision, first)
        found.append((pool[first:].cpu(), *(result.cpu() for result in attention)))
        del pool
    if device != "cpu":
        torch.cuda.empty_cache()  # other processes need the memory, too
    for what, near, far in zip(("frames", "decode", "prefill"), *found, strict=True):
        require(torch.equal(near, far), f"{what}: frame {base} is treated otherwise than frame 0")
    require(bool(found[0][1].isfinite().all() and found[0][2].isfinite().all()), "attention is not finite")
    return 0.0


def _frames_used(layout: FrameLayout, precision: Precision) -> int:
    return layout.open_frames_per_group(precision) + 3


def _all_ops(
    pool: torch.Tensor, layout: FrameLayout, precision: Precision, first: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two groups sealed, in place and from values, one copied over, five open tokens; then attention over all."""
    device, size, block = pool.device, layout.tokens_per_frame(precision), layout.block_size
    generator, heads = torch.Generator().manual_seed(10), (layout.num_kv_heads, layout.head_dim)
    keys, values = torch.randn((2, 2 * size + 5, *heads), generator=generator).bfloat16().to(device)
    opens = layout.open_frames_per_group(precision)
    at = torch.arange(size, device=device, dtype=torch.int32)
    run = first + torch.arange(opens, device=device, dtype=torch.int32)
    second, third, own = first + opens, first + opens + 1, first + opens + 2
    for layer in range(layout.num_layers):
        write_open(pool, layout, layer, run[at // block], at % block, keys[:size], values[:size], impl="triton")
        write_open(pool, layout, layer, at[:5] * 0 + own, at[:5], keys[-5:], values[-5:], impl="triton")
        group = keys[None, size : 2 * size], values[None, size : 2 * size]
        seal_frames(pool, layout, layer, precision, run[:1] * 0 + second, *group, impl="triton")
    seal_open_frames(pool, layout, range(layout.num_layers), precision, run[None], impl="triton")
    copy_frames(pool, layout, run[:1] * 0 + second, run[:1] * 0 + third, impl="triton")
    sealed = FrameTable(
        precision=precision,
        frames=torch.tensor([[first, third]], dtype=torch.int32, device=device),
        starts=torch.tensor([[0, size]], dtype=torch.int32, device=device),
        counts=torch.tensor([2], dtype=torch.int32, device=device),
    )
    return _attention(pool, layout, sealed, own, keys[-5:], values[-5:])


def _attention(
    pool: torch.Tensor, layout: FrameLayout, sealed: FrameTable, own: int, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode of the last of five open tokens, and prefill of five after them."""
    device, layer, scale = pool.device, layout.num_layers - 1, layout.head_dim**-0.5
    queries = torch.randn((5, 4 * layout.num_kv_heads, layout.head_dim), generator=torch.Generator().manual_seed(11))
    queries = queries.bfloat16().to(device)
    start = 2 * layout.tokens_per_frame(sealed.precision)
    own_table = OpenTable(
        frames=torch.tensor([[own]], dtype=torch.int32, device=device),
        starts=torch.tensor([start], dtype=torch.int32, device=device),
        lengths=torch.tensor([5], dtype=torch.int32, device=device),
    )
    decoded = decode.paged_decode(queries[:1], pool, layout, layer, [sealed], own_table, scale, Masking(), splits=1)
    chunk = ChunkTable(
        offsets=torch.tensor([0, 5], dtype=torch.int32, device=device),
        positions=torch.arange(start + 5, start + 10, dtype=torch.int32, device=device),
        group_starts=torch.full((5,), start, dtype=torch.int32, device=device),
        sealed=[sealed],
        open=own_table,
    )
    return decoded, paged_prefill(queries, keys, values, chunk, pool, layout, layer, scale=scale, impl="triton")


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless `condition` holds."""
    if not condition:
        raise AssertionError(message)

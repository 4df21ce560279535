"""Checks of what moves frames: demotion, swap by the byte, and every op in frames far beyond 32-bit offsets."""

from __future__ import annotations

import torch

from pagefleet_kernels.checks import CODE_STEP, check_copy, check_decode, check_prefill, check_seal, check_write_open
from pagefleet_kernels.copy_frames import frames_from_host, frames_to_host
from pagefleet_kernels.guards import require
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.read_frames import read_frames
from pagefleet_kernels.seal_frames import demote_frames
from pagefleet_kernels.testing import POISON


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


def check_far(layout: FrameLayout, precision: Precision, *, heads: int, device: str = "cpu") -> float:
    """All ops over frames that lie beyond 2^31 elements of any width. Returns the largest error of attention."""
    if precision is Precision.BF16:
        check_write_open(layout, device=device, far=True)
        check_copy(layout, device=device, far=True)
    else:
        for from_open in (False, True):
            check_seal(layout, precision, from_open=from_open, device=device, far=True)
    size, mix = layout.tokens_per_frame(precision), [precision]
    decoded = check_decode(layout, [0, 3 * size + 5], mix, heads=heads, device=device, far=True)
    chunk = (2 * size - 3, 3 * size + 5)
    prefilled = check_prefill(layout, [chunk], mix, heads=heads, device=device, far=True)
    if device != "cpu":
        torch.cuda.empty_cache()  # 8 GiB, which other processes need, too
    return max(decoded, prefilled)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()

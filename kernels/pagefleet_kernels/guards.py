"""What the checks put around the kernels: guarded results, and pools whose frames lie far from their start."""

from __future__ import annotations

import math
import mmap
import sys
from dataclasses import dataclass

import torch

from pagefleet_kernels.tables import FrameTable, OpenTable

GUARD_BYTES = 4096
_PATTERN = 0xA5
_FAR_BYTES = 2**33
"""Beyond 2^31 elements of whatever width a kernel counts in: bytes, bf16 or words."""
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which `mmap` does not name in every Python: else a small machine refuses to map so much."""


def require(condition: bool, message: str) -> None:
    """Raise AssertionError with this message."""
    if not condition:
        raise AssertionError(message)


class GuardedMemory:
    """`Allocate` that keeps a pattern on both sides of each tensor, and NaN inside."""

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, /) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        block = torch.full((size + 2 * GUARD_BYTES,), _PATTERN, dtype=torch.uint8, device=device)
        inside = block[GUARD_BYTES : GUARD_BYTES + size]
        inside.fill_(0xFF)
        self._blocks.append(block)
        return inside.view(dtype).view(shape)

    def check(self) -> None:
        """Raise AssertionError where a guard was written to, or where nothing was guarded."""
        require(bool(self._blocks), "no result was allocated here")
        for block in self._blocks:
            guards = torch.cat((block[:GUARD_BYTES], block[-GUARD_BYTES:]))
            require(bool((guards == _PATTERN).all()), "a kernel wrote beside its result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPool:
    """A copy of a pool on a device, its frames moved up by `base`."""

    whole: torch.Tensor
    base: int

    def frames(self) -> torch.Tensor:
        """The frames of the original as they are now, on the CPU."""
        return self.whole[self.base :].cpu()

    def ids(self, frames: torch.Tensor) -> torch.Tensor:
        """int32 frame ids in this pool, on its device; -1 (a padding row) stays."""
        return torch.where(frames < 0, frames, frames + self.base).int().to(self.whole.device)

    def table(self, table: FrameTable) -> FrameTable:
        """A table of the original as one of this pool."""
        device = self.whole.device
        return FrameTable(
            precision=table.precision,
            frames=self.ids(table.frames),
            starts=table.starts.to(device),
            counts=table.counts.to(device),
        )

    def open_table(self, table: OpenTable) -> OpenTable:
        """A table of the original as one of this pool."""
        device = self.whole.device
        return OpenTable(
            frames=self.ids(table.frames), starts=table.starts.to(device), lengths=table.lengths.to(device)
        )


def place(pool: torch.Tensor, device: str, *, far: bool) -> PlacedPool:
    """Copy a pool, behind 2^33 bytes of other frames if `far`. On a CPU those are mapped but take no memory."""
    if not far:
        return PlacedPool(whole=pool.to(device, copy=True), base=0)
    base = -(-_FAR_BYTES // pool.shape[1])
    shape = (base + pool.shape[0], pool.shape[1])
    if device == "cpu":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        whole = torch.frombuffer(mmap.mmap(-1, math.prod(shape), flags=flags), dtype=torch.uint8).view(shape)
    else:
        whole = torch.empty(shape, dtype=torch.uint8, device=device)
    whole[base:] = pool.to(device)
    return PlacedPool(whole=whole, base=base)

"""The frame pool and its host copy as tensors: views, raw writes, whole-frame copies.

Which frame holds what is the scheduler's business. Swaps may run beside the computation (`runtime.transfers`). Raw
values are those of open and BF16 frames; with `--dtype float32`, which exists for reference numerics, they are fp32 and
a frame is twice as large.

Shapes: F frames, G KV heads, B tokens of a block, K head dimension, T tokens of a step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import Demote
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.host_memory import HostMemory, pageable
from pagefleet_engine.runtime.transfers import InlineLane, Lane, Transfers
from pagefleet_kernels.copy_frames import copy_frames, frames_from_host, frames_to_host
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.layout import Precision as KernelPrecision
from pagefleet_kernels.read_frames import read_tiles
from pagefleet_kernels.seal_frames import demote_frames, seal_frames


def frame_layout(config: ModelConfig, *, block_size: int, raw_dtype: torch.dtype) -> FrameLayout:
    """The layout of this model's frames. An fp32 element counts as two BF16 ones."""
    wide = 2 if raw_dtype == torch.float32 else 1
    return FrameLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim * wide,
        block_size=block_size,
    )


_KERNEL_PRECISIONS = {precision: KernelPrecision(precision.value) for precision in Precision}


def kernel_precision(precision: Precision) -> KernelPrecision:
    """The kernels are a leaf and have an enumeration of their own."""
    return _KERNEL_PRECISIONS[precision]


class KvCache:
    """One `uint8` pool `[F, frame_bytes]` on the device and one in host memory, for swapped frames."""

    def __init__(
        self,
        layout: FrameLayout,
        *,
        num_frames: int,
        num_host_frames: int = 0,
        raw_dtype: torch.dtype = torch.bfloat16,
        device: torch.device | None = None,
        lane: Lane | None = None,
        host_memory: HostMemory = pageable,
    ) -> None:
        self.layout = layout
        self.raw_dtype = raw_dtype
        self.transfers = Transfers(lane or InlineLane())
        self.pool = torch.zeros((num_frames, layout.frame_bytes), dtype=torch.uint8, device=device)
        self.host = host_memory(num_host_frames * layout.frame_bytes).view(num_host_frames, layout.frame_bytes)
        self._raw = tuple(self._raw_view(layer) for layer in range(layout.num_layers))
        self._by_head = tuple(view.permute(1, 2, 0, 3, 4) for view in self._raw)
        self._by_token = tuple(view.permute(0, 3, 1, 2, 4) for view in self._raw)

    @property
    def num_frames(self) -> int:
        return self.pool.shape[0]

    def write(self, layer: int, frames_T: Tensor, rows_T: Tensor, k_TGK: Tensor, v_TGK: Tensor) -> None:
        """Store raw keys and values: token t goes to row `rows_T[t]` of frame `frames_T[t]`."""
        view_FB2GK = self._by_token[layer]
        view_FB2GK[:, :, 0].index_put_((frames_T, rows_T), k_TGK.to(self.raw_dtype))
        view_FB2GK[:, :, 1].index_put_((frames_T, rows_T), v_TGK.to(self.raw_dtype))

    def gather(self, layer: int, frames: Tensor) -> Tensor:
        """Raw keys and values `[2, G, n * B, K]` of n frames, copied, in order."""
        return self._by_head[layer].index_select(2, frames).flatten(2, 3)

    def read(self, layer: int, precision: Precision, frames: Tensor) -> Tensor:
        """Keys and values `[2, G, n, L, K]` of n sealed frames, dequantised to fp32; raw ones in the raw dtype."""
        if precision is Precision.BF16:
            return self._by_head[layer].index_select(2, frames)
        return torch.stack(read_tiles(self.pool, self.layout, layer, kernel_precision(precision), frames))

    def seal(self, layer: int, precision: Precision, targets: Tensor, kv_2NLGK: Tensor) -> None:
        """Quantise one layer of N full groups of L tokens, each into one frame."""
        keys, values = kv_2NLGK
        seal_frames(self.pool, self.layout, layer, kernel_precision(precision), targets, keys, values)

    def raw_tokens(self, layer: int, frames_N: Tensor, rows_N: Tensor) -> Tensor:
        """Raw keys and values `[N, 2, G, K]` of single tokens, copied."""
        return self._by_token[layer][frames_N.long(), rows_N.long()]

    def demote(self, moves: Sequence[Demote]) -> None:
        """Quantise runs of sealed raw frames in place, each into the first frame of its run; all layers."""
        self.transfers.wait_for(frame for move in moves for frame in move.frames)
        for precision in dict.fromkeys(move.precision for move in moves):
            runs = self._index([move.frames for move in moves if move.precision is precision])
            demote_frames(self.pool, self.layout, kernel_precision(precision), runs)

    def swap_out(self, frames: Sequence[int], slots: Sequence[int]) -> None:
        """Copy whole frames to host memory, scales included."""
        self.transfers.begin(frames, partial(frames_to_host, self.pool, self.layout, self.host, frames, slots))

    def swap_in(self, slots: Sequence[int], frames: Sequence[int]) -> None:
        """Copy whole frames back from host memory."""
        self.transfers.begin(frames, partial(frames_from_host, self.pool, self.layout, self.host, frames, slots))

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole frames inside the pool."""
        self.transfers.wait_for((*sources, *targets))
        copy_frames(self.pool, self.layout, self._index(sources), self._index(targets))

    def make_ready(self, frames: Collection[int] | None) -> None:
        """A computation that touches these frames, or any where that is None, may begin."""
        if frames is None:
            self.transfers.wait_for_all()
        else:
            self.transfers.wait_for(frames)

    def _index(self, frames: Sequence[int] | Sequence[tuple[int, ...]]) -> Tensor:
        return torch.tensor(frames, dtype=torch.int32).to(self.pool.device, non_blocking=True)

    def _raw_view(self, layer: int) -> Tensor:
        """`[F, 2, G, B, K]` over one layer's tiles, without a copy."""
        layout = self.layout
        elements = self.pool.view(self.raw_dtype)
        size = self.raw_dtype.itemsize
        head_dim = layout.tile_bytes // size // layout.block_size
        shape = (self.pool.shape[0], 2, layout.num_kv_heads, layout.block_size, head_dim)
        tile = layout.block_size * head_dim
        strides = (layout.frame_bytes // size, layout.num_kv_heads * tile, tile, head_dim, 1)
        return elements.as_strided(shape, strides, layout.tile_offset(layer, 0, 0) // size)

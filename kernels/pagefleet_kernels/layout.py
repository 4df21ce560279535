"""Where everything lies inside the KV pool: bytes per frame, tokens per frame, offsets. Pure and torch-free.

A frame is one row of a `uint8` pool `[num_frames, frame_bytes]`:

    tiles: layer -> K then V -> head -> one tile of 2 * block_size * head_dim bytes
    scale area: one fp32 per (layer, K|V, head)

An open frame is BF16: a tile is `[block_size, head_dim]`. Sealing packs a whole group of tokens into the tiles of its
first frame (see `TileFormat`). Kernels reach a tile only through `Address`, so that the pool can change its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

FRAME_ALIGNMENT: Final = 256
BLOCK_SIZES: Final = (8, 16, 32, 64)


class Precision(StrEnum):
    """How the sealed frames of a request store K and V. Open frames are always BF16."""

    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT4 = "int4"


class Part(IntEnum):
    """Which half of a layer a tile belongs to."""

    KEYS = 0
    VALUES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TileFormat:
    """How one sealed tile of `2 * block_size` rows by `head_dim` bytes is divided, for one precision.

    FP8, INT8 and INT4 keep K as `[code_rows, head_dim]` bytes and V transposed, `[head_dim, 2 * block_size]` bytes of
    which the first `code_rows` of each row are codes: both tensor-core products then read their bytes contiguously.
    An INT4 byte holds token `i` in its low and token `i + code_rows` in its high nibble.

    Inner scales are bf16. K, per channel: `[head_dim]` scales after the code rows, for INT4 then `[head_dim]` minima.
    V, per token: in the bytes that the codes leave free at the end of each row, `scales_per_row` tokens to a row, each
    `scale_bytes` wide (INT4: scale, then minimum).
    """

    num_tokens: int
    code_rows: int
    """Bytes per channel (and rows of K) that hold codes; equal to `num_tokens` except in INT4."""
    scale_bytes: int
    """Bytes of inner scales per K channel and per V token; 0 where the fp32 of the scale area is the only scale."""
    scales_per_row: int
    """V tokens whose scales share one row's tail; 0 without inner scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How kernels find a tile of one layer; everything in bytes from the start of the pool.

    tile(frame, part, head)  = frame * frame_stride + tile_base + (part * num_kv_heads + head) * tile_bytes
    scale(frame, part, head) = frame * frame_stride + scale_base + (part * num_kv_heads + head) * 4
    """

    frame_stride: int
    tile_base: int
    scale_base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLayout:
    """The frame of one model on one rank. `num_kv_heads` are the rank's own; `block_size` is in BF16 tokens."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.num_layers < 1 or self.num_kv_heads < 1:
            raise ValueError(f"num_layers {self.num_layers} and num_kv_heads {self.num_kv_heads} must be at least 1")
        if self.head_dim < 8 or self.head_dim % 8:
            raise ValueError(f"head_dim {self.head_dim}: must be a multiple of 8")
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size {self.block_size}: use one of {', '.join(map(str, BLOCK_SIZES))}")

    @property
    def tile_bytes(self) -> int:
        """Bytes of one (layer, K|V, head) tile, the same in every precision."""
        return 2 * self.block_size * self.head_dim

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's tiles."""
        return 2 * self.num_kv_heads * self.tile_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tiles; the scale area starts here."""
        return self.num_layers * self.layer_bytes

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame, a multiple of `FRAME_ALIGNMENT`."""
        used = self.payload_bytes + self.num_layers * 2 * self.num_kv_heads * 4
        return -(-used // FRAME_ALIGNMENT) * FRAME_ALIGNMENT

    def tokens_per_frame(self, precision: Precision | str) -> int:
        """Tokens of one sealed frame, which is also the length of a group in that precision."""
        return self.tile_format(precision).num_tokens

    def open_frames_per_group(self, precision: Precision | str) -> int:
        """Open frames that a full group occupies before it is sealed into the first of them."""
        return -(-self.tokens_per_frame(precision) // self.block_size)

    def tile_format(self, precision: Precision | str) -> TileFormat:
        """How a sealed tile of this precision is divided. Raises ValueError for an unknown precision."""
        rows = 2 * self.block_size
        match Precision(precision):
            case Precision.BF16:
                return TileFormat(
                    num_tokens=self.block_size, code_rows=self.block_size, scale_bytes=0, scales_per_row=0
                )
            case Precision.FP8_E4M3 | Precision.FP8_E5M2:
                return TileFormat(num_tokens=rows, code_rows=rows, scale_bytes=0, scales_per_row=0)
            case Precision.INT8:
                return self._scaled_format(code_rows=rows - 2, tokens_per_byte=1, scale_bytes=2)
            case Precision.INT4:
                return self._scaled_format(code_rows=rows - 4, tokens_per_byte=2, scale_bytes=4)

    def _scaled_format(self, *, code_rows: int, tokens_per_byte: int, scale_bytes: int) -> TileFormat:
        """Most code rows that leave room for the scales of all K channels and all V tokens."""
        while True:
            per_row = (2 * self.block_size - code_rows) // scale_bytes
            if per_row * self.head_dim >= code_rows * tokens_per_byte:
                break
            code_rows -= scale_bytes
        return TileFormat(
            num_tokens=code_rows * tokens_per_byte,
            code_rows=code_rows,
            scale_bytes=scale_bytes,
            scales_per_row=per_row,
        )

    def tile_offset(self, layer: int, part: Part | int, head: int) -> int:
        """Bytes from the start of a frame to a tile."""
        return layer * self.layer_bytes + (part * self.num_kv_heads + head) * self.tile_bytes

    def scale_offset(self, layer: int, part: Part | int, head: int) -> int:
        """Bytes from the start of a frame to the fp32 scale of a tile."""
        return self.payload_bytes + 4 * ((layer * 2 + part) * self.num_kv_heads + head)

    def address(self, layer: int) -> Address:
        """The address function of one layer, as numbers that a kernel takes."""
        return Address(
            frame_stride=self.frame_bytes,
            tile_base=self.tile_offset(layer, Part.KEYS, 0),
            scale_base=self.scale_offset(layer, Part.KEYS, 0),
        )

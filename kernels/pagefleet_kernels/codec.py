"""Numerics of sealed tiles in plain torch: the specification of every kernel that quantises or dequantises.

Legend: T tokens of a frame, D head dim, R code rows, W = 2 * block_size; `...` are any leading dimensions.

    FP8   scale = max(absmax, floor) / largest code, one fp32 per tile; code = round_even(x / scale), clamped
    INT8  K per channel, V per token; scale = absmax / 127 rounded up to bf16; code = round_even(x / scale) in -127..127
    INT4  the same axes, asymmetric; minimum rounded down and scale = (max - minimum) / 15 rounded up to bf16

Rounding scales up keeps every code in range. Only finite values count for absmax: an infinity saturates, and a NaN
stays visible (as an FP8 NaN code, or as the NaN scale of its channel or token) without spoiling other axes.
"""

from __future__ import annotations

from typing import Final

import torch

from pagefleet_kernels.layout import FrameLayout, Part, Precision, TileFormat
from pagefleet_kernels.pool import split_last

SCALE_FLOOR: Final = 1e-30
"""Smallest scale: its inverse is still finite, and values below it are zeros to any model."""

FP8_MAX: Final = {Precision.FP8_E4M3: 448.0, Precision.FP8_E5M2: 57344.0}
FP8_DTYPE: Final = {Precision.FP8_E4M3: torch.float8_e4m3fn, Precision.FP8_E5M2: torch.float8_e5m2}


def encode_tiles(
    values: torch.Tensor, part: Part, precision: Precision, layout: FrameLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise whole groups.

    values: [..., T, D] floating. Returns the tiles, uint8 [..., tile_bytes], and the scale area's fp32 scales [...]
    (1 where a precision does not use them). BF16 tiles are the rounded values themselves.
    """
    form = layout.tile_format(precision)
    x = values.to(torch.bfloat16).float()
    ones = x.new_ones(x.shape[:-2])
    if precision is Precision.BF16:
        return x.to(torch.bfloat16).contiguous().view(torch.uint8).flatten(-2), ones
    if precision in FP8_MAX:
        codes, scale = _encode_fp8(x, precision)
        rows = codes if part is Part.KEYS else codes.transpose(-1, -2)
        return rows.contiguous().flatten(-2), scale
    axis = -2 if part is Part.KEYS else -1
    codes, scales = (_encode_int8 if precision is Precision.INT8 else _encode_int4)(x, axis)
    if precision is Precision.INT4:
        codes = codes[..., : form.code_rows, :] | (codes[..., form.code_rows :, :] << 4)
    return _pack(codes, scales, part, layout, form), ones


def decode_tiles(
    tiles: torch.Tensor, scales: torch.Tensor, part: Part, precision: Precision, layout: FrameLayout
) -> torch.Tensor:
    """The fp32 values [..., T, D] that attention sees; exact for what `encode_tiles` wrote.

    tiles: uint8 [..., tile_bytes]; scales: the fp32 scales of the scale area, [...].
    """
    form = layout.tile_format(precision)
    if precision is Precision.BF16:
        return split_last(tiles.contiguous().view(torch.bfloat16).float(), form.num_tokens, layout.head_dim)
    if precision in FP8_MAX:
        return _decode_fp8(_rows(tiles, part, layout), scales[..., None, None], precision)
    rows = _rows(tiles, part, layout)
    codes = rows[..., : form.code_rows, :]
    inner = _unpack_scales(tiles, part, layout, form)
    scale = inner[..., 0].unsqueeze(-2 if part is Part.KEYS else -1)
    if precision is Precision.INT8:
        return codes.view(torch.int8).to(torch.float32, memory_format=torch.contiguous_format).mul_(scale)
    minimum = inner[..., 1].unsqueeze(-2 if part is Part.KEYS else -1)
    return torch.cat((codes & 15, codes >> 4), dim=-2).float().mul_(scale).add_(minimum)


def _rows(tile: torch.Tensor, part: Part, layout: FrameLayout) -> torch.Tensor:
    """A flat tile as [..., W, D]; a view."""
    width = 2 * layout.block_size
    if part is Part.KEYS:
        return split_last(tile, width, layout.head_dim)
    return split_last(tile, layout.head_dim, width).transpose(-1, -2)


def _finite_absmax(x: torch.Tensor, axis: int | tuple[int, ...]) -> torch.Tensor:
    top = x.abs().amax(axis, keepdim=True)
    if bool(top.isfinite().all()):
        return top
    return torch.where(x.isfinite(), x.abs(), 0).amax(axis, keepdim=True)


def _encode_fp8(x: torch.Tensor, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
    largest = FP8_MAX[precision]
    scale = (_finite_absmax(x, (-2, -1)) / largest).clamp_(min=SCALE_FLOOR)
    codes = (x * (1.0 / scale)).clamp_(-largest, largest).to(FP8_DTYPE[precision])
    return codes.view(torch.uint8), scale[..., 0, 0]


def _decode_fp8(codes: torch.Tensor, scales: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Exact for all 256 codes, and several times as fast on a CPU as torch's own cast: shift the bits into a half.

    E5M2 is the upper byte of a half. E4M3's exponent is 8 smaller than a half's, and its NaN comes out as 480.
    """
    if precision is Precision.FP8_E5M2:
        bits = codes.to(torch.int16, memory_format=torch.contiguous_format).bitwise_left_shift_(8)
        return bits.view(torch.float16).float().mul_(scales)
    signed = codes.view(torch.int8).to(torch.int16, memory_format=torch.contiguous_format)
    x = signed.bitwise_left_shift_(7).bitwise_and_(-0x4001).view(torch.float16).float()
    if codes.numel() and (int(codes.view(torch.int8).amax()) == 0x7F or int(codes.amax()) == 0xFF):
        x.masked_fill_(x.abs() * 2**8 == 480.0, torch.nan)
    return x.mul_(2**8 * scales)


def _encode_int8(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., T, D] and scales [..., n, 1] along the other axis."""
    scale = bf16_above((_finite_absmax(x, axis) / 127.0).clamp_(min=SCALE_FLOOR))
    codes = _whole(x * (1.0 / scale), -127, 127).to(torch.int8)
    return codes.view(torch.uint8), _with_nan(scale, x, axis).squeeze(axis)[..., None]


def _encode_int4(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., T, D] and (scale, minimum) [..., n, 2] along the other axis."""
    high, low = x.amax(axis, keepdim=True), x.amin(axis, keepdim=True)
    if not bool((high - low).isfinite().all()):
        finite = x.isfinite()
        high = torch.where(finite, x, -torch.inf).amax(axis, keepdim=True)
        low = torch.where(finite, x, torch.inf).amin(axis, keepdim=True)
        low = torch.where(low > high, 0.0, low)  # nothing finite
    scale = bf16_above(((high.clamp(min=low) - low) / 15.0).clamp_(min=SCALE_FLOOR))
    codes = _whole((x - low).mul_(1.0 / scale), 0, 15).to(torch.uint8)
    return codes, torch.stack((_with_nan(scale, x, axis).squeeze(axis), low.squeeze(axis)), dim=-1)


def _whole(x: torch.Tensor, lowest: int, highest: int) -> torch.Tensor:
    """Rounded to even and clamped, in place; NaN becomes 0, whose scale will be NaN."""
    x = x.round_().clamp_(lowest, highest)
    return x.nan_to_num_(0.0) if bool(x.sum().isnan()) else x


def _with_nan(scale: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    if not bool(x.sum().isnan()):
        return scale
    return scale.masked_fill(x.isnan().any(axis, keepdim=True), torch.nan)


def bf16_above(x: torch.Tensor) -> torch.Tensor:
    """The smallest bf16 that is not below x, as fp32; x is positive fp32."""
    return (x.view(torch.int32) + 0xFFFF).bitwise_and_(-0x10000).view(torch.float32)


def _pack(codes: torch.Tensor, scales: torch.Tensor, part: Part, layout: FrameLayout, form: TileFormat) -> torch.Tensor:
    """Code rows [..., R, D] and inner scales [..., n, 1 or 2] -> tile; spare bytes are zero."""
    tile = codes.new_zeros((*codes.shape[:-2], layout.tile_bytes))
    _rows(tile, part, layout)[..., : form.code_rows, :] = codes
    raw = scales.to(torch.bfloat16)
    if part is Part.KEYS:
        start = form.code_rows * layout.head_dim
        flat = raw.transpose(-1, -2).contiguous().flatten(-2).view(torch.uint8)
        tile[..., start : start + form.scale_bytes * layout.head_dim] = flat
    else:
        tails = _tails(tile, layout, form)
        room = raw.new_zeros((*raw.shape[:-2], layout.head_dim * form.scales_per_row, raw.shape[-1]))
        room[..., : form.num_tokens, :] = raw
        tails.copy_(room.view(torch.uint8).reshape(tails.shape))
    return tile


def _unpack_scales(tile: torch.Tensor, part: Part, layout: FrameLayout, form: TileFormat) -> torch.Tensor:
    """Inner scales, fp32 [..., n, 1 or 2], n = D for K and T for V."""
    if part is Part.KEYS:
        start = form.code_rows * layout.head_dim
        flat = tile[..., start : start + form.scale_bytes * layout.head_dim].contiguous().view(torch.bfloat16)
        return split_last(flat.float(), form.scale_bytes // 2, layout.head_dim).transpose(-1, -2)
    room = layout.head_dim * form.scales_per_row
    tails = split_last(_tails(tile, layout, form).flatten(-2), room, form.scale_bytes)
    return tails[..., : form.num_tokens, :].contiguous().view(torch.bfloat16).float()


def _tails(tile: torch.Tensor, layout: FrameLayout, form: TileFormat) -> torch.Tensor:
    """The bytes of V's rows that hold scales, [..., D, scales_per_row * scale_bytes]; a view."""
    rows = split_last(tile, layout.head_dim, 2 * layout.block_size)
    return rows[..., form.code_rows : form.code_rows + form.scales_per_row * form.scale_bytes]

"""Rotary position embedding in the half-split form: dimension i turns with dimension i + head_dim / 2.

Shapes: P positions, T tokens, H heads, K head dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagefleet_engine.models.config import ModelConfig, RopeScaling


class RotaryTable:
    """Cosines and sines of every position a model may see, in fp32."""

    def __init__(self, config: ModelConfig, num_positions: int, device: torch.device) -> None:
        frequencies = rotary_frequencies(config.head_dim, config.rope_base, config.rope_scaling).to(device)
        angles_PK2 = torch.outer(torch.arange(num_positions, device=device, dtype=torch.float32), frequencies)
        angles_PK = torch.cat((angles_PK2, angles_PK2), dim=-1)
        self.cos_PK, self.sin_PK = angles_PK.cos(), angles_PK.sin()

    def at(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[T, 1, K]` of these positions; one look-up serves all layers of a step."""
        cos = self.cos_PK.index_select(0, positions_T).to(dtype).unsqueeze(1)
        sin = self.sin_PK.index_select(0, positions_T).to(dtype).unsqueeze(1)
        return cos, sin

    def rotate(self, x_THK: Tensor, cos_T1K: Tensor, sin_T1K: Tensor) -> Tensor:
        """Turn every pair of dimensions by the angle of its token's position."""
        first, second = x_THK.chunk(2, dim=-1)
        return x_THK * cos_T1K + torch.cat((-second, first), dim=-1) * sin_T1K


def rotary_frequencies(head_dim: int, base: float, scaling: RopeScaling | None) -> Tensor:
    """`base ** (-2i / head_dim)` for i in 0 .. head_dim/2, stretched as Llama 3 does when asked to."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / base**exponents
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Meta's Llama 3.1 rule, written per frequency; see `RopeScaling`."""
    turns = scaling.original_len * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)

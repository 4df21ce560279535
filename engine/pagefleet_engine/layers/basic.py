"""Linear, RMS norm, embedding and the gated MLP as small callables over plain tensors.

Not `nn.Module`: there is nothing to train, and a decode step on a CPU calls these 200 times per token.

Shapes: T tokens of a step, D hidden size, I and O input and output width, F width of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Projection(Protocol):
    """A linear layer, whole or one rank's part of it."""

    def __call__(self, x_TI: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """`x_TI @ weight_OI.T + bias_O`."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root mean square norm over the last dimension; the mean is taken in fp32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of the token table."""

    weight: Tensor

    def __call__(self, token_ids_T: Tensor) -> Tensor:
        return F.embedding(token_ids_T, self.weight)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """`down(silu(gate(x)) * up(x))`, gate and up in one product."""

    gate_up: Projection
    down: Projection

    def __call__(self, x_TD: Tensor) -> Tensor:
        gate_TF, up_TF = self.gate_up(x_TD).chunk(2, dim=-1)
        return self.down(F.silu(gate_TF) * up_TF)

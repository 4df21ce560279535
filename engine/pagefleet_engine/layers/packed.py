"""Linear layers whose weights stay in four bits for small batches, where reading them is what takes the time.

A Q4_1 block of a GGUF file gives 32 weights of a row one scale and one minimum: w = scale * code + minimum. Torch's CPU
product for packed weights takes w = scale * (code - 8) + zero with both numbers in bf16, so zero = minimum + 8 * scale;
that rounds about as much as bf16 weights do. Above `MOST_ROWS` the bf16 weights are faster (measured on two cores with
AVX-512: 4 times slower at 1 row, equal at 32).

Shapes: T tokens, O and I output and input width, B = I / 32 blocks of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
MOST_ROWS = 16
_INNER_TILES = 1  # how the packed layout interleaves; the CPU product ignores it


class BlockWeights(NamedTuple):
    """The weights of a linear layer as a Q4_1 file has them."""

    codes_OI: Tensor
    """uint8, 0..15"""
    scale_OB: Tensor
    minimum_OB: Tensor

    def select_rows(self, order: Tensor) -> BlockWeights:
        """The output rows in another order."""
        return BlockWeights(*(part.index_select(0, order) for part in self))

    def values(self) -> Tensor:
        """The weights in fp32, `[O, I]`."""
        scale, minimum = (part.repeat_interleave(BLOCK, dim=1) for part in (self.scale_OB, self.minimum_OB))
        return self.codes_OI * scale + minimum


def stack_rows(parts: list[BlockWeights]) -> BlockWeights:
    """Several layers over the same input as one."""
    return BlockWeights(*(torch.cat(same) for same in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A `Projection` with two copies of its weights: bf16, and four bits for at most `MOST_ROWS` rows."""

    weight_OI: Tensor
    packed: Tensor
    scale_zero_BO2: Tensor

    def __call__(self, x_TI: Tensor) -> Tensor:
        if x_TI.shape[0] > MOST_ROWS:
            return F.linear(x_TI, self.weight_OI)
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x_TI, self.packed, BLOCK, self.scale_zero_BO2)
        return product


def pack(weights: BlockWeights, weight_OI: Tensor) -> PackedLinear:
    """`weight_OI` are the same weights in bf16."""
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weights.codes_OI.to(torch.int32), _INNER_TILES)
    zero_OB = weights.minimum_OB + 8.0 * weights.scale_OB
    scale_zero = torch.stack((weights.scale_OB.t(), zero_OB.t()), dim=-1)
    return PackedLinear(weight_OI, packed, scale_zero.to(torch.bfloat16).contiguous())

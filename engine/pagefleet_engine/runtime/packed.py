"""Many small int32 arrays in one buffer, so that a step's index tables reach the device in one copy.

Every array begins at a multiple of 128 bytes: Triton compiles another kernel for pointers that are less aligned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 32
"""In elements."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Packed:
    """A buffer and the shapes of the arrays in it, in order."""

    shapes: tuple[tuple[int, ...], ...]
    buffer: Tensor

    def views(self) -> list[Tensor]:
        """The arrays, without a copy."""
        starts = _starts(self.shapes)
        return [
            self.buffer[start : start + math.prod(shape)].view(shape)
            for start, shape in zip(starts, self.shapes, strict=False)
        ]

    def at(self, buffer: Tensor) -> Packed:
        """The same arrays in another buffer, which the caller has filled."""
        return Packed(self.shapes, buffer)


def pack(arrays: Sequence[Ints]) -> Packed:
    """Lay the arrays out one after the other."""
    shapes = tuple(array.shape for array in arrays)
    starts = _starts(shapes)
    buffer = np.zeros(starts[-1], dtype=np.int32)
    for start, array in zip(starts, arrays, strict=False):
        buffer[start : start + array.size] = array.ravel()
    return Packed(shapes, torch.from_numpy(buffer))


def _starts(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Where each array begins, and at last where the buffer ends."""
    sizes = (-(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT for shape in shapes)
    return list(itertools.accumulate(sizes, initial=0))

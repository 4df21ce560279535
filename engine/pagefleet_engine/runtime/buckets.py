"""Sizes that decode steps are padded to, so that a captured graph serves many steps. Pure.

Padding rows have no sealed frames, no open tokens and frame -1: the kernels read and write nothing for them.
"""

from __future__ import annotations

from dataclasses import dataclass

_FINE_UNTIL = 64
_FINE, _COARSE = 8, 32
_NARROWEST = 16


@dataclass(frozen=True, slots=True)
class Buckets:
    """Whether to pad at all: without graphs there is nothing to gain."""

    enabled: bool = False

    def rows(self, count: int) -> int:
        """1, 2, 4, 8, then steps of 8 up to 64, then steps of 32."""
        if not self.enabled:
            return count
        if count <= _FINE:
            return 1 << max(count - 1, 0).bit_length()
        step = _FINE if count <= _FINE_UNTIL else _COARSE
        return -(-count // step) * step

    def width(self, count: int) -> int:
        """Powers of two from 16 on: a table outgrows its graph only when it has doubled."""
        if not self.enabled:
            return count
        return max(_NARROWEST, 1 << max(count - 1, 0).bit_length())

"""The arguments of attention over a paged cache: which frames each sequence holds, and where in the sequence they lie.

Legend: S sequences, W width of a table. Entries beyond a sequence's count are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagefleet_kernels.layout import Precision
from pagefleet_kernels.pool import check_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTable:
    """The sealed frames of S sequences in one precision, in the order of their positions.

    A sequence that changed its precision has frames in several tables; one without frames here has count 0.
    """

    precision: Precision
    frames: torch.Tensor
    """int32 [S, W]: frame ids."""
    starts: torch.Tensor
    """int32 [S, W]: position of the first token of each frame."""
    counts: torch.Tensor
    """int32 [S]: frames of each sequence."""

    def __post_init__(self) -> None:
        check_shape("frames", self.frames, (-1, -1))
        check_shape("starts", self.starts, tuple(self.frames.shape))
        check_shape("counts", self.counts, (self.frames.shape[0],))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """The open frames of S sequences: tokens of the group that each is writing."""

    frames: torch.Tensor
    """int32 [S, W]: frame ids."""
    starts: torch.Tensor
    """int32 [S]: position of the first token of the group."""
    lengths: torch.Tensor
    """int32 [S]: tokens written so far; 0 marks a padding row where no sealed frames are given either."""

    def __post_init__(self) -> None:
        check_shape("frames", self.frames, (-1, -1))
        check_shape("starts", self.starts, (self.frames.shape[0],))
        check_shape("lengths", self.lengths, (self.frames.shape[0],))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Prompt chunks of S sequences, N tokens together, and what they may read; the same for all layers of a step."""

    offsets: torch.Tensor
    """int32 [S + 1]: chunk s is rows offsets[s] to offsets[s + 1]."""
    positions: torch.Tensor
    """int32 [N]"""
    group_starts: torch.Tensor
    """int32 [N]: position of the first token of each token's group."""
    sealed: Sequence[FrameTable]
    open: OpenTable
    """Tokens of earlier chunks in a group that the chunk continues: `lengths` does not count the chunk itself."""

    def __post_init__(self) -> None:
        sequences = self.open.frames.shape[0]
        check_shape("offsets", self.offsets, (sequences + 1,))
        check_shape("positions", self.positions, (-1,))
        check_shape("group_starts", self.group_starts, tuple(self.positions.shape))
        for table in self.sealed:
            check_shape("sealed", table.frames, (sequences, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """What a model restricts beyond causality."""

    window: int | None = None
    """A query sees the last `window` positions, its own included; None: all."""
    sinks: int = 0
    """The first positions of the sequence, visible in spite of the window."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap); None: unchanged."""

"""Launch parameters as pure functions of shapes: no device is asked, nothing is tuned at run time.

The numbers follow from the compiled code (registers, instructions per byte read) as `docs/kernels.md` argues them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagefleet_kernels.layout import Precision

MAX_SPLITS: Final = 64
SPLIT_COST: Final = 4
"""What one more program costs (start, partial result, merge), in iterations of the inner loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLaunch:
    """How the decode kernel runs for one precision."""

    frames: int
    """Frames per iteration; 1 where scales are per channel."""
    num_warps: int
    num_stages: int
    residents: int = 4
    """Programs that one multiprocessor holds at once, by the registers of the compiled kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLaunch:
    """How a kernel without tensor cores runs."""

    num_warps: int
    block: int = 0
    """Elements of one program, where it does not follow from the model's shapes."""


MERGE_PARTS: Final = 32
"""Partial results that a merge takes at once: as many as its registers hold without spilling, for heads up to 256."""


def plain_launch(kernel: str) -> PlainLaunch:
    """Kernels that move, round or merge: bound by memory. Raises ValueError for a name without parameters."""
    match kernel:
        case "seal" | "write_open" | "combine" | "rope":
            return PlainLaunch(num_warps=4)
        case "copy":
            return PlainLaunch(num_warps=8, block=4096)
        case "rms_norm":
            return PlainLaunch(num_warps=8)
        case "silu_mul":
            return PlainLaunch(num_warps=4, block=1024)
    raise ValueError(f"kernel {kernel!r}: no launch parameters are known")


def power_of_two_from(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def decode_launch(precision: Precision, *, block_size: int, head_dim: int) -> DecodeLaunch:
    """Tile and pipeline depth: about 64 tokens per iteration, and stages that fit into shared memory."""
    wide = head_dim > 128
    match precision:
        case Precision.BF16:
            frames = max(1, (32 if wide else 64) // block_size)
            return DecodeLaunch(frames=frames, num_warps=4, num_stages=3, residents=3 if wide else 4)
        case Precision.FP8_E4M3 | Precision.FP8_E5M2:
            frames = max(1, (64 if wide else 128) // (2 * block_size))
            return DecodeLaunch(frames=frames, num_warps=4, num_stages=3, residents=3)
        case Precision.INT8 | Precision.INT4:
            # One warp: half the instructions per byte of four, which exchange partial sums through shared memory.
            return DecodeLaunch(frames=1, num_warps=4 if wide else 1, num_stages=4, residents=4 if wide else 8)


def num_splits(*, num_sequences: int, num_kv_heads: int, num_iterations: int, num_slots: int) -> int:
    """Into how many shares the sealed frames of a sequence are cut, so that all slots have work until the end.

    num_iterations: inner-loop iterations of the longest sequence; num_slots: programs that the device runs at once
    (multiprocessors times programs per multiprocessor). Minimises rounds * (iterations per share + SPLIT_COST).
    """
    tiles = max(1, num_sequences * num_kv_heads)

    def cost(splits: int) -> int:
        rounds = -(-tiles * splits // num_slots)
        return rounds * (-(-num_iterations // splits) + SPLIT_COST)

    return min(range(1, max(1, min(MAX_SPLITS, num_iterations)) + 1), key=lambda splits: (cost(splits), splits))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillLaunch:
    """How the prefill kernel runs for one precision."""

    rows: int
    """query tokens times query heads of a KV head, in one tile"""
    frames: int
    """sealed frames per iteration"""
    raw: int
    """raw tokens per iteration"""
    num_warps: int
    num_stages: int


def prefill_launch(precision: Precision, *, group: int, block_size: int, head_dim: int) -> PrefillLaunch:
    """Tiles of 128 rows by 64 keys, smaller ones where accumulators or scales take the registers."""
    wide = head_dim > 128
    rows = max(64 if wide else 128, power_of_two_from(group))
    match precision:
        case Precision.BF16:
            frames = (32 if wide else 64) // block_size
        case Precision.FP8_E4M3 | Precision.FP8_E5M2:
            frames = (32 if wide else 64) // (2 * block_size)
        case Precision.INT8 | Precision.INT4:
            frames = 1
    return PrefillLaunch(rows=rows, frames=max(1, frames), raw=32, num_warps=8, num_stages=2 if wide else 3)

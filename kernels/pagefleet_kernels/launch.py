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
            warps = _scaled_warps(precision, block_size, head_dim)
            stages = 4 if _tile_units(block_size, head_dim) <= 2 else 3
            # all 255 registers of a thread are taken, or nearly
            return DecodeLaunch(frames=1, num_warps=warps, num_stages=stages, residents=8 // warps)


def _tile_units(block_size: int, head_dim: int) -> int:
    """Size of the codes of one frame and head, as loaded: 1 for 32 tokens of 128 channels."""
    return max(1, 2 * block_size * power_of_two_from(head_dim) // 4096)


def _scaled_warps(precision: Precision, block_size: int, head_dim: int) -> int:
    """Warps of a decode program over frames with inner scales: as few as hold a frame without spilling.

    One warp takes half the instructions per byte of four, which exchange partial sums through shared memory.
    """
    units = _tile_units(block_size, head_dim)
    warps = units * (2 if head_dim > 128 else 1)
    is_padded = power_of_two_from(head_dim) != head_dim
    if precision is Precision.INT4 and (units > 1 or is_padded):
        warps *= 2
    return min(8, warps)


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
    rows, frames = (64 if wide else 128), 1
    match precision:
        case Precision.BF16:
            frames = (32 if wide else 64) // block_size
        case Precision.FP8_E4M3 | Precision.FP8_E5M2:
            rows, frames = (32 if wide else 128), (32 if wide else 64) // (2 * block_size)
        case Precision.INT8:
            rows = 32 if wide else 128
        case Precision.INT4:
            rows = _int4_rows(block_size, wide=wide)
    return PrefillLaunch(
        rows=max(rows, power_of_two_from(group)),
        frames=max(1, frames),
        raw=min(32, rows),
        num_warps=8,
        num_stages=2 if wide or block_size > 32 else 3,
    )


def _int4_rows(block_size: int, *, wide: bool) -> int:
    """Two nibbles and two sets of scales leave few registers where a frame has many tokens or channels."""
    if block_size <= 16 and not wide:
        return 128
    return 32 if block_size == 32 and not wide else 16


def decode_shared_bytes(plan: DecodeLaunch, precision: Precision, *, block_size: int, head_dim: int) -> int:
    """Most shared memory that a decode program takes: its stages of K and V, then these as 16-bit operands."""
    loaded, keys = _loaded_bytes(plan.frames, precision, block_size, head_dim)
    return plan.num_stages * loaded + _operand_bytes(keys, 16, head_dim)


def prefill_shared_bytes(plan: PrefillLaunch, precision: Precision, *, block_size: int, head_dim: int) -> int:
    """Most shared memory that a prefill program takes."""
    loaded, keys = _loaded_bytes(plan.frames, precision, block_size, head_dim)
    return plan.num_stages * loaded + _operand_bytes(max(keys, plan.raw), plan.rows, head_dim)


def _loaded_bytes(frames: int, precision: Precision, block_size: int, head_dim: int) -> tuple[int, int]:
    """K and V of one iteration as they lie in the pool, and its keys."""
    is_raw = precision is Precision.BF16
    keys = frames * block_size * (1 if is_raw else 2)
    return 2 * keys * power_of_two_from(head_dim) * (2 if is_raw else 1), keys


_EXCHANGED: Final = 12 * 1024
"""Most that warps exchange through shared memory in any compiled configuration."""


def _operand_bytes(keys: int, rows: int, head_dim: int) -> int:
    """Operands of both products in 16 bits: K, V, queries, weights; and what warps exchange."""
    channels = power_of_two_from(head_dim)
    return 2 * (2 * keys * channels + rows * channels + rows * keys) + _EXCHANGED

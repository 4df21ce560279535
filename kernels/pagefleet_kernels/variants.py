"""Every kernel as it is compiled: compile-time arguments, warps and stages, as pure functions of the model's shapes.

Launchers take these and nothing else, so `variants` lists all that an engine can ever need: what varies from step to
step (sequences, lengths, splits, parts) is an argument at run time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from pagefleet_kernels.launch import (
    MERGE_PARTS,
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
    plain_launch,
    power_of_two_from,
    prefill_launch,
)
from pagefleet_kernels.layout import Address, FrameLayout, Part, Precision
from pagefleet_kernels.tables import Masking

CODES: Final = {name: code for code, name in enumerate(Precision)}

_REMEMBERED = 256
"""Results of each function below: launchers ask for them at every layer of every step."""


class KernelName(StrEnum):
    """The kernels that read or write a pool, or merge what was read."""

    DECODE = "decode"
    PREFILL = "prefill"
    COMBINE = "combine"
    SEAL = "seal"
    WRITE_OPEN = "write_open"
    COPY = "copy"


_WITHOUT_NATIVE = (KernelName.WRITE_OPEN, KernelName.COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled kernel; equal ones are compiled once."""

    kernel: KernelName
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    num_stages: int = 3

    def options(self, *, native: bool) -> dict[str, Any]:
        """Keyword arguments of a launch. `native` is off in Triton's interpreter."""
        constants = dict(self.constants)
        if self.kernel not in _WITHOUT_NATIVE:
            constants["NATIVE"] = native
        return {**constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model's attention is compiled for, on one rank."""

    layout: FrameLayout
    group: int
    """Query heads of one KV head."""
    masking: Masking = Masking()


@lru_cache(maxsize=_REMEMBERED)
def decode_variant(
    model: Model,
    precision: Precision,
    *,
    direct: bool,
    launch: DecodeLaunch | None = None,
    address: Address | None = None,
) -> Variant:
    """`direct`: one program per sequence and KV head writes the result; else several leave parts for a merge."""
    layout = model.layout
    plan = launch or decode_launch(precision, block_size=layout.block_size, head_dim=layout.head_dim)
    constants = {
        **_tile_constants(model, address or layout.address(0), precision),
        "ROWS": max(16, power_of_two_from(model.group)),
        "FRAMES": plan.frames,
        "STAGES": plan.num_stages,
        "DIRECT": direct,
    }
    return Variant(
        kernel=KernelName.DECODE,
        constants=tuple(constants.items()),
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


@lru_cache(maxsize=_REMEMBERED)
def prefill_variant(
    model: Model, precision: Precision, *, direct: bool, launch: PrefillLaunch | None = None
) -> Variant:
    """`direct`: the only precision of its step; else one of several, whose parts are merged."""
    layout = model.layout
    plan = launch or prefill_launch(
        precision, group=model.group, block_size=layout.block_size, head_dim=layout.head_dim
    )
    constants = {
        **_tile_constants(model, layout.address(0), precision),
        "ROWS": plan.rows,
        "FRAMES": plan.frames,
        "RAW": plan.raw,
        "STAGES": plan.num_stages,
        "DIRECT": direct,
    }
    return Variant(
        kernel=KernelName.PREFILL,
        constants=tuple(constants.items()),
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )


@lru_cache(maxsize=_REMEMBERED)
def combine_variant(layout: FrameLayout) -> Variant:
    """The merge of any number of parts."""
    constants = {
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": power_of_two_from(layout.head_dim),
        "PARTS": MERGE_PARTS,
    }
    return Variant(
        kernel=KernelName.COMBINE,
        constants=tuple(constants.items()),
        num_warps=plain_launch(KernelName.COMBINE).num_warps,
    )


@lru_cache(maxsize=_REMEMBERED)
def seal_variant(layout: FrameLayout, precision: Precision, part: Part | int, *, from_open: bool) -> Variant:
    """K or V, from open frames in place or from values."""
    form = layout.tile_format(precision)
    constants = {
        "KV_HEADS": layout.num_kv_heads,
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": power_of_two_from(layout.head_dim),
        "FRAME_BYTES": layout.frame_bytes,
        "TILE_BYTES": layout.tile_bytes,
        "SCALE_AREA": layout.payload_bytes,
        "BLOCK_SIZE": layout.block_size,
        "NUM_TOKENS": form.num_tokens,
        "CODE_ROWS": form.code_rows,
        "BLOCK_ROWS": power_of_two_from(form.code_rows),
        "PER_ROW": max(1, form.scales_per_row),
        "PRECISION": CODES[precision],
        "PART": int(part),
        "FROM_OPEN": from_open,
    }
    return Variant(
        kernel=KernelName.SEAL, constants=tuple(constants.items()), num_warps=plain_launch(KernelName.SEAL).num_warps
    )


@lru_cache(maxsize=_REMEMBERED)
def write_open_variant(layout: FrameLayout) -> Variant:
    """All heads of one token."""
    constants = {
        "KV_HEADS": layout.num_kv_heads,
        "BLOCK_H": power_of_two_from(layout.num_kv_heads),
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": power_of_two_from(layout.head_dim),
        "FRAME_BYTES": layout.frame_bytes,
        "TILE_BYTES": layout.tile_bytes,
    }
    return Variant(
        kernel=KernelName.WRITE_OPEN,
        constants=tuple(constants.items()),
        num_warps=plain_launch(KernelName.WRITE_OPEN).num_warps,
    )


@lru_cache(maxsize=_REMEMBERED)
def copy_variant(layout: FrameLayout) -> Variant:
    """Whole frames, in words."""
    plan = plain_launch(KernelName.COPY)
    constants = {"FRAME_WORDS": layout.frame_bytes // 4, "BLOCK": plan.block}
    return Variant(kernel=KernelName.COPY, constants=tuple(constants.items()), num_warps=plan.num_warps)


def _tile_constants(model: Model, address: Address, precision: Precision) -> dict[str, Any]:
    """What both attention kernels are compiled for."""
    layout, masking = model.layout, model.masking
    form = layout.tile_format(precision)
    return {
        "GROUP": model.group,
        "KV_HEADS": layout.num_kv_heads,
        "HEAD_DIM": layout.head_dim,
        "BLOCK_D": max(16, power_of_two_from(layout.head_dim)),
        "FRAME_BYTES": address.frame_stride,
        "TILE_BYTES": layout.tile_bytes,
        "BLOCK_SIZE": layout.block_size,
        "WIDTH": layout.block_size if precision is Precision.BF16 else 2 * layout.block_size,
        "CODE_ROWS": form.code_rows,
        "PER_ROW": max(1, form.scales_per_row),
        "PRECISION": CODES[precision],
        "WINDOW": masking.window or 0,
        "SINKS": masking.sinks,
        "SOFT_CAP": masking.soft_cap or 0.0,
    }


def variants(model: Model, precisions: Collection[Precision]) -> Iterator[Variant]:
    """All that an engine can launch whose requests have these precisions, whatever its steps look like.

    A step whose sequences have no sealed frame yet reads an empty BF16 table. A single precision is never merged in
    prefill; in decode it is where its sequences are cut into shares.
    """
    layout, several = model.layout, len(set(precisions)) > 1
    yield write_open_variant(layout)
    yield copy_variant(layout)
    yield combine_variant(layout)
    for precision in sorted({Precision.BF16, *precisions}):
        yield decode_variant(model, precision, direct=True)
        yield prefill_variant(model, precision, direct=True)
    for precision in sorted(set(precisions)):
        yield decode_variant(model, precision, direct=False)
        if several:
            yield prefill_variant(model, precision, direct=False)
        for part in Part if precision is not Precision.BF16 else ():
            for from_open in (False, True):
                yield seal_variant(layout, precision, part, from_open=from_open)

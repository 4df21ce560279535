"""How one call of decode attention is cut into launches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_kernels.launch import DecodeLaunch, decode_launch, num_splits
from pagefleet_kernels.layout import Address, Precision
from pagefleet_kernels.variants import Model, Variant, decode_variant

NOTHING_SEALED = (Precision.BF16, 0)
"""The shape of a call without tables: its sequences have open frames only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePart:
    """The launch for one precision."""

    variant: Variant
    splits: int
    first_part: int
    """Its first partial result among those of all launches."""
    programs: int
    """Per sequence and KV head: its shares, and one for the open frames in the first launch that is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """All launches of a call."""

    parts: tuple[DecodePart, ...]
    num_parts: int

    @property
    def is_direct(self) -> bool:
        """The only launch writes the result; nothing is merged."""
        return self.num_parts == 1


def plan_decode(
    model: Model,
    shapes: Sequence[tuple[Precision, int]],
    *,
    num_sequences: int,
    multiprocessors: int,
    splits: int | None = None,
    launch: DecodeLaunch | None = None,
    address: Address | None = None,
) -> DecodePlan:
    """shapes: precision and width of each table, at least one. The widest row of a table bounds its sequences, so that
    a captured graph serves any lengths up to it. `splits`, `launch` and `address` override the rules."""
    counts = [
        splits or table_splits(model, *shape, num_sequences=num_sequences, multiprocessors=multiprocessors,
                               launch=launch)
        for shape in shapes
    ]  # fmt: skip
    direct = counts == [1]
    parts, first_part = [], 0
    for (precision, _), count in zip(shapes, counts, strict=True):
        programs = count + int(first_part == 0 and not direct)
        variant = decode_variant(model, precision, direct=direct, launch=launch, address=address)
        parts.append(DecodePart(variant=variant, splits=count, first_part=first_part, programs=programs))
        first_part += programs
    return DecodePlan(parts=tuple(parts), num_parts=first_part)


def table_splits(
    model: Model,
    precision: Precision,
    width: int,
    *,
    num_sequences: int,
    multiprocessors: int,
    launch: DecodeLaunch | None = None,
) -> int:
    """Into how many shares a table of this width is cut."""
    layout = model.layout
    plan = launch or decode_launch(precision, block_size=layout.block_size, head_dim=layout.head_dim)
    return num_splits(
        num_sequences=num_sequences,
        num_kv_heads=layout.num_kv_heads,
        num_iterations=-(-width // plan.frames),
        num_slots=multiprocessors * plan.residents,
    )

"""A small paged cache with known contents, and attention over it written out plainly: for tests and `check_gpu.py`.

`plain_attention` loops over single queries in fp64 over the dequantised cache; it shares no code with the references
but the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pagefleet_kernels.codec import decode_tiles, encode_tiles
from pagefleet_kernels.layout import FrameLayout, Part, Precision
from pagefleet_kernels.seal_frames import seal_frames
from pagefleet_kernels.tables import FrameTable, Masking, OpenTable
from pagefleet_kernels.tolerance import Seen, attention_weights, joined, seen_group
from pagefleet_kernels.write_open import write_open

POISON = 0xFF  # NaN in bf16, E4M3, E5M2 and fp32


@dataclass(eq=False)
class CachedSequence:
    """What one sequence holds: raw tokens, its groups as (start, size, precision), and its frames."""

    keys: torch.Tensor
    values: torch.Tensor
    groups: list[tuple[int, int, Precision]]
    sealed: list[tuple[Precision, int, int]] = field(default_factory=list)  # precision, frame, start
    open_frames: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.keys.shape[0]

    def group_of(self, position: int) -> tuple[int, int, Precision]:
        return next(g for g in self.groups if g[0] <= position < g[0] + g[1])


class Cache:
    """A poisoned pool filled with sequences; frames are dealt in a scrambled order, first and last are guards."""

    def __init__(self, layout: FrameLayout, num_frames: int, *, seed: int = 0) -> None:
        self.layout = layout
        self.pool = torch.full((num_frames, layout.frame_bytes), POISON, dtype=torch.uint8)
        self.generator = torch.Generator().manual_seed(seed)
        self.free = (torch.randperm(num_frames - 2, generator=self.generator) + 1).tolist()
        self.sequences: list[CachedSequence] = []
        self._seen: dict[tuple[int, int, int], Seen] = {}

    def add(self, length: int, precisions: list[Precision]) -> CachedSequence:
        """A sequence of random tokens whose i-th group has the i-th precision (the last one repeats)."""
        shape = (length, self.layout.num_kv_heads, self.layout.head_dim)
        sequence = CachedSequence(
            keys=torch.randn(shape, generator=self.generator).bfloat16(),
            values=torch.randn(shape, generator=self.generator).bfloat16(),
            groups=[],
        )
        start = 0
        while start <= length:
            precision = precisions[min(len(sequence.groups), len(precisions) - 1)]
            size = self.layout.tokens_per_frame(precision)
            sequence.groups.append((start, size, precision))
            start += size
        self.sequences.append(sequence)
        return sequence

    def fill(self, sequence: CachedSequence, sealed_until: int, open_until: int) -> None:
        """Seal the groups that end at or before `sealed_until`; write the raw tokens after them, up to `open_until`."""
        start = 0
        for start, size, precision in sequence.groups:
            if start + size > sealed_until:
                break
            self.seal(sequence, start, size, precision)
        count, block = max(open_until - start, 0), self.layout.block_size
        sequence.open_frames = [self.free.pop() for _ in range(-(-count // block))]
        slots = torch.arange(count)
        frames = torch.tensor(sequence.open_frames, dtype=torch.int32)[slots // block] if count else slots
        for layer in range(self.layout.num_layers):
            tokens = sequence.keys[start:open_until] + layer, sequence.values[start:open_until] - layer
            write_open(self.pool, self.layout, layer, frames, slots % block, *tokens, impl="reference")

    def seal(self, sequence: CachedSequence, start: int, size: int, precision: Precision) -> None:
        """Seal one group from its raw tokens into a frame of its own; layer l holds keys + l and values - l."""
        frame = self.free.pop()
        own = slice(start, start + size)
        for layer in range(self.layout.num_layers):
            tokens = sequence.keys[None, own] + layer, sequence.values[None, own] - layer
            index = torch.tensor([frame])
            seal_frames(self.pool, self.layout, layer, precision, index, *tokens, impl="reference")
        sequence.sealed.append((precision, frame, start))

    def tables(self, sealed_until: list[int], open_until: list[int]) -> tuple[list[FrameTable], OpenTable]:
        """The tables of all sequences, one per precision; unused entries hold garbage that must not be read."""
        sealed = []
        for precision in Precision:
            rows = [[(f, s) for p, f, s in q.sealed if p is precision] for q in self.sequences]
            width = max(map(len, rows)) + 1
            if width > 1:
                sealed.append(
                    FrameTable(
                        precision=precision,
                        frames=_int32([[f for f, _ in r] + [2**30] * (width - len(r)) for r in rows]),
                        starts=_int32([[s for _, s in r] + [-7] * (width - len(r)) for r in rows]),
                        counts=_int32([len(r) for r in rows]),
                    )
                )
        width = max(len(q.open_frames) for q in self.sequences) + 1
        starts = [q.group_of(until)[0] for q, until in zip(self.sequences, sealed_until, strict=True)]
        return sealed, OpenTable(
            frames=_int32([q.open_frames + [2**30] * (width - len(q.open_frames)) for q in self.sequences]),
            starts=_int32(starts),
            lengths=_int32([max(u - s, 0) for u, s in zip(open_until, starts, strict=True)]),
        )

    def seen(self, sequence: CachedSequence, layer: int, position: int) -> Seen:
        """What a query at `position` sees, by the visibility rule: position + 1 tokens."""
        own = sequence.group_of(position)[0]
        known = (id(sequence), layer, own)
        if known not in self._seen:
            self._seen[known] = self._mixed(sequence, layer, own)
        return self._seen[known].only(slice(position + 1))

    def _mixed(self, sequence: CachedSequence, layer: int, own: int) -> Seen:
        """All tokens of a layer: groups before the one at `own` dequantised, the rest raw."""
        groups = []
        for start, size, precision in sequence.groups:
            keys = sequence.keys[start : start + size] + layer
            values = sequence.values[start : start + size] - layer
            if start < own:
                keys = self._dequantised(keys, Part.KEYS, precision)
                values = self._dequantised(values, Part.VALUES, precision)
            if keys.shape[0]:
                groups.append(seen_group(keys, values, precision if start < own else Precision.BF16))
        return joined(groups)

    def _dequantised(self, tokens: torch.Tensor, part: Part, precision: Precision) -> torch.Tensor:
        encoded = encode_tiles(tokens.transpose(0, 1), part, precision, self.layout)
        return decode_tiles(*encoded, part, precision, self.layout).transpose(0, 1)


def plain_attention(query: torch.Tensor, seen: Seen, scale: float, masking: Masking) -> torch.Tensor:
    """One query [A, D], in fp64."""
    weights = attention_weights(query, seen.keys, scale, masking)
    return torch.einsum("hgj,jhd->hgd", weights, seen.values).reshape(query.shape)


def _int32(rows: Sequence[Sequence[int]] | Sequence[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)

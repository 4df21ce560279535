"""KV arithmetic for the operator, `pagefleet plan` and the scheduler: tokens, frames, bytes.

With L tokens to a group and b tokens to an open frame, T tokens of one precision lie in

    T // L sealed frames + ceil((T mod L) / b) open frames

and growing to T tokens one by one has taken at most `peak_frames(T)`: the last group to be sealed was open before.
What a frame looks like inside is `pagefleet_kernels.layout`'s business. With several ranks, bytes are those of one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from pagefleet_engine.contract.precision import Precision
from pagefleet_kernels.layout import FrameLayout


class Layout(Protocol):
    """What the scheduler needs to know of a frame; `FrameLayout` is the real one."""

    @property
    def block_size(self) -> int:
        """Tokens of an open frame."""
        ...

    def tokens_per_frame(self, precision: Precision) -> int:
        """Tokens of a sealed frame: at least `block_size`."""
        ...


class GroupSizes:
    """Group lengths by precision, and the arithmetic on them."""

    __slots__ = ("block_size", "lengths")

    def __init__(self, layout: Layout) -> None:
        self.block_size = layout.block_size
        self.lengths = {precision: layout.tokens_per_frame(precision) for precision in Precision}

    def open_frames(self, num_tokens: int) -> int:
        """Open frames that `num_tokens` tokens of one group take."""
        return -(-num_tokens // self.block_size)

    def frames(self, num_tokens: int, precision: Precision) -> int:
        """Frames that a sequence of this length takes."""
        full, rest = divmod(num_tokens, self.lengths[precision])
        return full + self.open_frames(rest)

    def peak_frames(self, num_tokens: int, precision: Precision) -> int:
        """The most frames that a sequence takes on its way to this length."""
        full = num_tokens // self.lengths[precision]
        before_last_seal = full - 1 + self.open_frames(self.lengths[precision] - 1) if full else 0
        return max(self.frames(num_tokens, precision), before_last_seal)

    def longest(self, num_frames: int, precision: Precision) -> int:
        """The longest sequence that `num_frames` frames can hold all the way."""
        lengths = range(1, num_frames * self.lengths[precision] + 1)
        return bisect_right(lengths, num_frames, key=lambda num_tokens: self.peak_frames(num_tokens, precision))


def rank_layout(
    *, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, tensor_parallel_size: int = 1
) -> FrameLayout:
    """The frame on one rank: KV heads are divided, or repeated where there are fewer than ranks.

    Raises ValueError when neither divides the other.
    """
    few, many = sorted((num_kv_heads, tensor_parallel_size))
    if many % few:
        raise ValueError(
            f"{num_kv_heads} KV heads cannot be shared by {tensor_parallel_size} ranks: "
            "use a tensor parallel size that divides them or is a multiple of them"
        )
    return FrameLayout(
        num_layers=num_layers,
        num_kv_heads=max(1, num_kv_heads // tensor_parallel_size),
        head_dim=head_dim,
        block_size=block_size,
    )


def pool_frames(pool_bytes: int, layout: FrameLayout) -> int:
    """Whole frames in a pool of this many bytes."""
    return pool_bytes // layout.frame_bytes


def sequence_bytes(num_tokens: int, precision: Precision, layout: FrameLayout) -> int:
    """Pool bytes that one sequence of `num_tokens`, prompt and answer, takes at most.

    The KV of the last token is never computed. This is also the smallest pool that serves such a sequence.
    """
    return GroupSizes(layout).peak_frames(num_tokens - 1, precision) * layout.frame_bytes


def concurrent_sequences(pool_bytes: int, num_tokens: int, precision: Precision, layout: FrameLayout) -> int:
    """Sequences of `num_tokens`, prompt and answer, that a pool holds at once without sharing any of it."""
    return pool_bytes // sequence_bytes(max(2, num_tokens), precision, layout)


def longest_sequence(pool_bytes: int, precision: Precision, layout: FrameLayout) -> int:
    """The longest sequence, prompt and answer, that a pool can serve; 0 when it holds no frame."""
    num_frames = pool_frames(pool_bytes, layout)
    return GroupSizes(layout).longest(num_frames, precision) + 1 if num_frames else 0

"""What the runner has to do with frames: the small values that `ScheduleOutput` is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pagefleet_engine.contract.precision import Precision


class SwapOut(NamedTuple):
    """Copy one whole frame to host memory. A later part of the same step may write the frame again."""

    frame: int
    slot: int
    """Index of a host frame of the same size."""


class Demote(NamedTuple):
    """Read sealed BF16 `frames`, in order of position, and write their tokens as one sealed frame into `frames[0]`."""

    frames: tuple[int, ...]
    num_tokens: int
    precision: Precision


class SwapIn(NamedTuple):
    """Copy one whole frame back from host memory. No request of the same step reads the frame."""

    slot: int
    frame: int


class CopyFrame(NamedTuple):
    """Copy one whole open frame, because a fork is about to write into it. No frame is source and target at once."""

    source: int
    target: int


class GroupWrite(NamedTuple):
    """The part of a step that falls into one group: its tokens `num_written` to `num_written + num_new`.

    Three cases:
    - not `seals`: the group stays open. `frames` holds token i of the group at `frames[i // block_size]`, row
      `i % block_size`; there are ceil((num_written + num_new) / block_size) of them. Write the new tokens as BF16.
    - `seals` and num_written == 0: begun and completed in this step. `frames` is the one target; the raw values of
      the whole group come from this step's own activations.
    - `seals` and num_written > 0: `frames` are the open frames begun earlier, ceil(num_written / block_size) of them,
      in order. The raw values are theirs plus this step's activations. Seal into `frames[0]`, in place; the
      others are free after the step.
    For BF16 a group is one frame, and sealing means no more than that the new tokens have been written into it.
    """

    start: int
    """Position of the group's first token."""
    length: int
    """Tokens of the full group."""
    precision: Precision
    """What the group is or will be sealed in."""
    frames: tuple[int, ...]
    seals: bool
    """The group becomes full in this step."""
    num_written: int
    """Tokens of the group that earlier steps wrote."""
    num_new: int
    """Tokens of the group that this step writes."""


@dataclass(slots=True)
class Moves:
    """What has to be moved before the step at hand computes, as it is being collected."""

    swap_out: dict[int, int] = field(default_factory=dict)
    """Host slot → frame. A slot that is given up again in the same step is not written."""
    demote: list[Demote] = field(default_factory=list)
    swap_in: list[SwapIn] = field(default_factory=list)
    copy: list[CopyFrame] = field(default_factory=list)

"""What the scheduler tells about itself: one look at its state, and counters that only grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.counters import MemoryCounters
from pagefleet_engine.memory.frame_pool import FrameState


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since the start."""

    preemptions: int = 0
    """Requests that had to leave the pool, by swap or by recompute."""
    swaps: int = 0
    """Preempted requests whose frames were moved to host memory."""
    resumes: int = 0
    """Swapped requests whose frames were brought back."""
    recomputes: int = 0
    """Preempted requests whose KV was dropped because host space was short."""
    stalls: int = 0
    """Steps in which a running request got no token, because nobody behind it could give up frames."""
    resets: int = 0
    """Requests that did not run (waiting forks, parked or swapped ones) and lost their KV to one that needed it."""
    forks: int = 0
    """Requests that began with frames of another one."""
    prompt_tokens: int = 0
    """Prompt tokens of requests that were admitted, cached ones included."""
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """One consistent look. Shares are 0..1."""

    running: int
    waiting: int
    """Includes forks that wait for their parent's prompt."""
    swapped: int
    parked: int
    cap: int
    capacity: int
    max_model_len: int
    usage: float
    """Frames that requests hold, as a share of the pool."""
    frames: Mapping[FrameState, int]
    """By state; the sum is the pool."""
    sealed_frames: Mapping[Precision, int]
    """By precision; cached frames that nobody holds are among them, and a shared one counts once."""
    host_usage: float
    """Host frames that swapped requests hold, as a share of host memory; cached prefixes do not count."""
    counters: Counters
    memory: MemoryCounters

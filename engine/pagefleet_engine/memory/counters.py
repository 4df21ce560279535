"""What the memory counts since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class MemoryCounters:
    """Totals that only grow. Frames unless it says tokens."""

    swapped_out: int = 0
    """Frames of preempted requests copied to host memory."""
    swapped_in: int = 0
    """Frames of preempted requests copied back."""
    evicted: int = 0
    """Cached frames that nobody held and that made room."""
    evicted_to_host: int = 0
    """Those of them that were copied to host memory."""
    evicted_from_host: int = 0
    """Cached frames dropped from host memory to make room there."""
    prefetched: int = 0
    """Cached frames copied back from host memory for a hit."""
    demoted: int = 0
    """BF16 frames that became part of an FP8 frame."""
    copied: int = 0
    """Open frames copied because a fork wrote into them."""
    prefix_query_tokens: int = 0
    """Tokens looked up in the prefix cache, once per admission."""
    prefix_hit_tokens: int = 0
    """Those of them that were found in the pool."""
    prefix_host_hit_tokens: int = 0
    """Those of them that were found in host memory."""

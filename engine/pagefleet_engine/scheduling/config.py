"""What a scheduler is started with. Limits that can change on a live engine start here and live in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Sizes of the engine and policy constants. Raises ValueError for values that cannot work."""

    num_frames: int
    """Frames of the KV pool."""
    num_host_frames: int = 0
    """Frames of host memory for swapped requests and evicted prefixes."""
    max_num_seqs: int
    """Capacity: the cap never exceeds it."""
    initial_cap: int | None = None
    """Requests that may run at once at start; None: the capacity."""
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_model_len: int
    """Longest prompt plus answer."""
    max_num_queued: int = 1024
    """Waiting requests beyond which new ones are refused."""
    max_num_queued_tokens: int | None = None
    """Tokens of waiting prompts beyond which new ones are refused; None: as many as there are."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end-of-sequence tokens."""
    enable_prefix_caching: bool = False
    model: str = ""
    """Identity of the weights; part of every prefix key."""
    cache_key: bytes = b""
    """Secret key of the prefix hashes, at most 64 bytes, so that nobody can aim at a collision."""
    batch_invariant: bool = False
    """Never change what a request has already computed: demotion is off."""
    aging_steps: int = 512
    """A request that has waited this many steps overtakes newer ones of the next better priority."""
    protected_steps: int = 8
    """Steps for which a resumed request is no victim, as long as anybody else can compute."""

    def __post_init__(self) -> None:
        for name in ("num_frames", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "aging_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: must be at least 1")
        if self.num_host_frames < 0 or self.max_num_queued < 0 or self.protected_steps < 0:
            raise ValueError("num_host_frames, max_num_queued and protected_steps must not be negative")
        if self.initial_cap is not None and not 1 <= self.initial_cap <= self.max_num_seqs:
            raise ValueError(f"initial_cap is {self.initial_cap}: must be 1 to {self.max_num_seqs}")

"""What a model looks like, whatever file it came from. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's frequency-dependent stretch of the rotary angles.

    Wavelengths below `original_len / high_freq_factor` stay, those above `original_len / low_freq_factor` are divided
    by `factor`, and between them the two are blended linearly.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder of the Llama family."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_len: int
    rope_base: float
    norm_eps: float
    tied_embeddings: bool = True
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    """Qwen2: the q, k and v projections add a bias."""
    qk_norm: bool = False
    """Qwen3: every head of q and k is normalised before the rotation."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head dimension {self.head_dim} is odd: rotary embeddings need pairs")

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_groups(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

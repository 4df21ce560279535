"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 differ only in switches of `ModelConfig`.

Shapes: T tokens of a step, D hidden size, H query heads, G KV heads, K head dimension, V vocabulary, S sampled rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pagefleet_engine.layers.basic import Embedding, GatedMLP, Linear, RMSNorm
from pagefleet_engine.layers.rope import RotaryTable, rotate
from pagefleet_engine.models.config import ModelConfig


class AttendStep(Protocol):
    """Attention of one step: stores the new keys and values, and reads everything the queries may see."""

    def __call__(self, layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
        """The attention output `[T, H, K]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """One block: attention and MLP, each with its norm before and its residual around."""

    attention_norm: RMSNorm
    qkv: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    output: Linear
    mlp_norm: RMSNorm
    mlp: GatedMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A loaded model. Holds no state between steps; the KV cache belongs to `AttendStep`."""

    config: ModelConfig
    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: RMSNorm
    head: Linear
    rotary: RotaryTable

    def hidden(self, token_ids_T: Tensor, positions_T: Tensor, attend: AttendStep) -> Tensor:
        """Activations `[T, D]` after the last layer, before the final norm."""
        x_TD = self.embedding(token_ids_T)
        cos, sin = self.rotary.at(positions_T, x_TD.dtype)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, layer.attention_norm(x_TD))
            mixed = attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v)
            x_TD = x_TD + layer.output(mixed.flatten(1))
            x_TD = x_TD + layer.mlp(layer.mlp_norm(x_TD))
        return x_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        """Logits `[S, V]` in fp32."""
        return self.head(self.norm(x_SD)).float()

    def _project(self, layer: DecoderLayer, x_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        parts_TPK = layer.qkv(x_TD).view(x_TD.shape[0], -1, config.head_dim)
        heads, kv_heads = config.num_heads, config.num_kv_heads
        q_THK, k_TGK = parts_TPK[:, :heads], parts_TPK[:, heads : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q_THK, k_TGK = layer.q_norm(q_THK), layer.k_norm(k_TGK)
        return q_THK, k_TGK, parts_TPK[:, heads + kv_heads :]

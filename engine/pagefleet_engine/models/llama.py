"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 differ only in switches of `ModelConfig`.

Shapes: T tokens of a step, D hidden size, H query heads, G KV heads, K head dimension, V vocabulary, S sampled rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from pagefleet_engine.layers.basic import Embedding, GatedMLP, Linear, Projection, RMSNorm
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.layers.row_tiles import in_row_tiles
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
    qkv: Projection
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    output: Projection
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
    row_tile: int | None = None
    """Rows of every row-wise computation; None takes all rows of a step at once. See `layers.row_tiles`."""

    def hidden(self, token_ids_T: Tensor, positions_T: Tensor, attend: AttendStep) -> Tensor:
        """Activations `[T, D]` after the last layer, before the final norm."""
        x_TD = self.embedding(token_ids_T)
        cos, sin = self.rotary.at(positions_T, x_TD.dtype)
        for index, layer in enumerate(self.layers):
            q, k, v = in_row_tiles(partial(self._before, layer), self.row_tile, x_TD, cos, sin)
            mixed = attend(index, q, k, v)
            (x_TD,) = in_row_tiles(partial(self._after, layer), self.row_tile, x_TD, mixed)
        return x_TD

    def logits(self, x_SD: Tensor) -> Tensor:
        """Logits `[S, V]` in fp32."""
        return in_row_tiles(lambda x: (self.head(self.norm(x)).float(),), self.row_tile, x_SD)[0]

    def _before(self, layer: DecoderLayer, x_TD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: what attention takes."""
        heads, kv_heads, head_dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        parts_TPK = layer.qkv(layer.attention_norm(x_TD)).view(x_TD.shape[0], -1, head_dim)
        q_THK, k_TGK = parts_TPK[:, :heads], parts_TPK[:, heads : heads + kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            q_THK, k_TGK = layer.q_norm(q_THK), layer.k_norm(k_TGK)
        rotate = self.rotary.rotate
        return rotate(q_THK, cos, sin), rotate(k_TGK, cos, sin), parts_TPK[:, heads + kv_heads :]

    def _after(self, layer: DecoderLayer, x_TD: Tensor, mixed_THK: Tensor) -> tuple[Tensor]:
        """What follows attention, with both residuals."""
        x_TD = x_TD + layer.output(mixed_THK.flatten(1))
        return (x_TD + layer.mlp(layer.mlp_norm(x_TD)),)

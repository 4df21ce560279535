"""A checkpoint, whatever its file format: a configuration and tensors under Hugging Face's names.

Those names are the common tongue here: `model.layers.3.self_attn.q_proj.weight`. Formats translate to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from pagefleet_engine.layers.packed import BlockWeights
from pagefleet_engine.models.config import ModelConfig


class Checkpoint(Protocol):
    """What the loader needs of a file format."""

    @property
    def source(self) -> str:
        """The file or folder, for messages."""
        ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor in the checkpoint, by canonical name."""
        ...

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, in fp32 or the precision it is stored in."""
        ...

    def block_weights(self, name: str) -> BlockWeights | None:
        """The same matrix in four bits, where the file has it so."""
        ...


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this configuration has, with its shape."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, q, kv, ffn = config.hidden_size, config.q_size, config.kv_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes

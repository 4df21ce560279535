"""What the tensors of a GGUF file mean: names, sizes, and llama.cpp's order of the rotary rows.

llama.cpp rotates neighbouring dimensions (0, 1), (2, 3), ...; our models rotate the halves (i, i + K/2). Its converter
reorders the rows of q and k of `llama` files to match; the rows are put back here. Qwen files are not reordered.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.packed import BlockWeights
from pagefleet_engine.models.config import ModelConfig, RopeScaling
from pagefleet_engine.weights.gguf_file import GgufFile

ARCHITECTURES = ("llama", "qwen2", "qwen3")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NOT_WEIGHTS = ("rope_freqs.weight",)
"""Llama 3's stretch of the rotary angles, precomputed; read as metadata below, not as a parameter."""


class GgufCheckpoint:
    """A `Checkpoint` over one GGUF file."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self._names = {canonical_name(name): name for name in self.file.shapes if name not in _NOT_WEIGHTS}
        self.config = read_config(self.file)

    @property
    def source(self) -> str:
        return str(self.file.path)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = self.file.shapes
        return {canonical: shapes[name] for canonical, name in self._names.items()}

    def tensor(self, name: str) -> Tensor:
        values = self.file.tensor(self._names[name])
        heads = self._rotary_heads(name)
        return values if heads is None else restore_rotary_rows(values, heads)

    def block_weights(self, name: str) -> BlockWeights | None:
        found = self.file.block_weights(self._names[name])
        heads = self._rotary_heads(name)
        if found is None or heads is None:
            return found
        return found.select_rows(restore_rotary_rows(torch.arange(found.codes_OI.shape[0]), heads))

    def _rotary_heads(self, name: str) -> int | None:
        """Heads whose rows have to be put back; None for every other tensor."""
        if self.config.architecture != "llama":
            return None
        if ".q_proj." in name:
            return self.config.num_heads
        return self.config.num_kv_heads if ".k_proj." in name else None


def canonical_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    words = name.split(".")
    if len(words) == 2 and words[0] in _TOP:
        return f"{_TOP[words[0]]}.{words[1]}"
    if len(words) == 4 and words[0] == "blk" and words[2] in _LAYER:
        return f"model.layers.{words[1]}.{_LAYER[words[2]]}.{words[3]}"
    return name


def restore_rotary_rows(weight: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from neighbouring pairs back to halves: row 2i -> i, row 2i + 1 -> i + K/2."""
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def read_config(file: GgufFile) -> ModelConfig:
    """The configuration from the metadata. Raises `StartupError` for an architecture we do not have."""
    arch = file.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise StartupError(
            f"{file.path}: architecture {arch!r} is not supported; use one of {', '.join(ARCHITECTURES)}"
        )
    hidden = file.integer(f"{arch}.embedding_length")
    heads = file.integer(f"{arch}.attention.head_count")
    shapes = file.shapes
    try:
        return ModelConfig(
            architecture=arch,
            num_layers=file.integer(f"{arch}.block_count"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=file.integer(f"{arch}.attention.head_count_kv", heads),
            head_dim=file.integer(f"{arch}.attention.key_length", hidden // max(heads, 1)),
            intermediate_size=file.integer(f"{arch}.feed_forward_length"),
            vocab_size=len(file.strings("tokenizer.ggml.tokens")),
            context_len=file.integer(f"{arch}.context_length"),
            rope_base=file.number(f"{arch}.rope.freq_base", 10000.0),
            norm_eps=file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            tied_embeddings="output.weight" not in shapes,
            rope_scaling=_rope_scaling(file, arch),
            qkv_bias="blk.0.attn_q.bias" in shapes,
            qk_norm="blk.0.attn_q_norm.weight" in shapes,
        )
    except (ValueError, ZeroDivisionError) as error:
        raise StartupError(f"{file.path}: {error}") from error


def _rope_scaling(file: GgufFile, arch: str) -> RopeScaling | None:
    """Llama 3 files carry one divisor per frequency; its extremes give back the four numbers of the rule."""
    if "rope_freqs.weight" in file.shapes:
        divisors = file.tensor("rope_freqs.weight")
        original_len = file.integer(f"{arch}.rope.scaling.original_context_length", 8192)
        return RopeScaling(
            factor=float(divisors.max()), low_freq_factor=1.0, high_freq_factor=4.0, original_len=original_len
        )
    kind = file.get(f"{arch}.rope.scaling.type")
    if kind not in (None, "none"):
        raise StartupError(f"{file.path}: rotary scaling {kind!r} is not supported")
    return None

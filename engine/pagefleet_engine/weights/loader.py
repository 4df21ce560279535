"""From a checkpoint to a `Decoder`: every tensor checked, none left over, projections fused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.basic import Embedding, GatedMLP, Linear, Projection, RMSNorm
from pagefleet_engine.layers.packed import pack, stack_rows
from pagefleet_engine.layers.parallel import AllReduce, Shard, SummedLinear
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.llama import Decoder, DecoderLayer
from pagefleet_engine.weights.checkpoint import Checkpoint, expected_shapes
from pagefleet_engine.weights.gguf_checkpoint import GgufCheckpoint
from pagefleet_engine.weights.resolve import exists
from pagefleet_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint

WHOLE = Shard()
_SHOWN = 4
"""Names listed in an error; a foreign file would list hundreds."""


def open_checkpoint(model: str) -> Checkpoint:
    """The checkpoint behind `--model`: a GGUF file, a folder with exactly one, or a Hugging Face folder.

    Raises `StartupError`.
    """
    path = Path(model)
    if not exists(model):
        raise StartupError(f"--model {model}: no such file or folder")
    if not path.is_dir():
        return GgufCheckpoint(path)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return SafetensorsCheckpoint(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        found = "neither a .gguf file nor config.json with .safetensors files in it"
        if files:
            found = f"{len(files)} .gguf files in it; name one of them"
        raise StartupError(f"--model {model}: {found}")
    return GgufCheckpoint(files[0])


def load_decoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    shard: Shard = WHOLE,
    all_reduce: AllReduce | None = None,
) -> Decoder:
    """Read the weights of one shard into `dtype` on `device`. Raises `StartupError` that lists what does not fit."""
    check_tensors(checkpoint)
    try:
        config = shard.config(checkpoint.config)
    except ValueError as error:
        raise StartupError(f"--tensor-parallel-size {shard.size}: {error}") from error
    reader = _Reader(checkpoint, shard, all_reduce, dtype, device)
    embedding = reader.whole("model.embed_tokens.weight")
    return Decoder(
        config=config,
        embedding=Embedding(embedding),
        layers=tuple(reader.layer(index) for index in range(config.num_layers)),
        norm=reader.norm("model.norm.weight"),
        head=Linear(embedding if config.tied_embeddings else reader.whole("lm_head.weight")),
        rotary=RotaryTable(config, num_positions, device),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Tensors of one shard, converted and moved."""

    checkpoint: Checkpoint
    shard: Shard
    all_reduce: AllReduce | None
    dtype: torch.dtype
    device: torch.device

    def layer(self, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        config = self.checkpoint.config
        return DecoderLayer(
            attention_norm=self.norm(prefix + "input_layernorm.weight"),
            qkv=self._qkv(prefix, biased=config.qkv_bias),
            q_norm=self.norm(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=self.norm(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
            output=self._summed(prefix + "self_attn.o_proj.weight"),
            mlp_norm=self.norm(prefix + "post_attention_layernorm.weight"),
            mlp=GatedMLP(gate_up=self._gate_up(prefix), down=self._summed(prefix + "mlp.down_proj.weight")),
        )

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.whole(name), self.checkpoint.config.norm_eps)

    def whole(self, name: str) -> Tensor:
        return self._kept(self.checkpoint.tensor(name))

    def _qkv(self, prefix: str, *, biased: bool) -> Projection:
        """Rows of this rank's query heads, then of its key heads, then of its value heads."""
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        weight = self._qkv_rows([name + ".weight" for name in names])
        if biased:
            return Linear(weight, self._qkv_rows([name + ".bias" for name in names]))
        return self._packed([name + ".weight" for name in names], weight)

    def _qkv_rows(self, names: list[str]) -> Tensor:
        q, k, v = (self.checkpoint.tensor(name) for name in names)
        num_kv_heads = self.checkpoint.config.num_kv_heads
        parts = (self.shard.slice(q, 0), *(self.shard.kv_rows(part, num_kv_heads) for part in (k, v)))
        return self._kept(torch.cat([part.to(self.dtype) for part in parts]))

    def _gate_up(self, prefix: str) -> Projection:
        names = [f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up")]
        parts = [self.shard.slice(self.checkpoint.tensor(name), 0).to(self.dtype) for name in names]
        return self._packed(names, self._kept(torch.cat(parts)))

    def _summed(self, name: str) -> Projection:
        linear = self._packed([name], self._kept(self.shard.slice(self.checkpoint.tensor(name), 1)))
        return linear if self.all_reduce is None else SummedLinear(linear, self.all_reduce)

    def _packed(self, names: list[str], weight: Tensor) -> Projection:
        """With a four-bit copy where the file has one, on a CPU and in bf16; a shard's cut would split its blocks."""
        if self.dtype is not torch.bfloat16 or self.device.type != "cpu" or self.shard.size > 1:
            return Linear(weight)
        parts = [part for name in names if (part := self.checkpoint.block_weights(name)) is not None]
        return pack(stack_rows(parts), weight) if len(parts) == len(names) else Linear(weight)

    def _kept(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).to(self.device).contiguous()


def check_tensors(checkpoint: Checkpoint) -> None:
    """Compare names and shapes with what the configuration needs. Raises `StartupError` with all differences."""
    want, have = expected_shapes(checkpoint.config), checkpoint.shapes
    problems = [
        _listed("missing", [name for name in want if name not in have]),
        _listed("not used by this architecture", [name for name in have if name not in want]),
        _listed(
            "of another shape",
            [
                f"{name} {list(have[name])} instead of {list(want[name])}"
                for name in want
                if name in have and tuple(have[name]) != want[name]
            ],
        ),
    ]
    found = "; ".join(problem for problem in problems if problem)
    if found:
        raise StartupError(f"{checkpoint.source}: the tensors do not make a {checkpoint.config.architecture}: {found}")


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:_SHOWN])}{more}"

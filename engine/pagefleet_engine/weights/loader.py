"""From a checkpoint to a `Decoder`: every tensor checked, none left over, projections fused."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.basic import Embedding, GatedMLP, Linear, RMSNorm
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.llama import Decoder, DecoderLayer
from pagefleet_engine.weights.checkpoint import Checkpoint, expected_shapes
from pagefleet_engine.weights.gguf_checkpoint import GgufCheckpoint
from pagefleet_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint

_SHOWN = 4
"""Names listed in an error; a foreign file would list hundreds."""


def open_checkpoint(model: str) -> Checkpoint:
    """The checkpoint behind `--model`: a GGUF file, a folder with exactly one, or a Hugging Face folder.

    Raises `StartupError`.
    """
    path = Path(model)
    if not path.exists():
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


def load_decoder(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, num_positions: int) -> Decoder:
    """Read every weight into `dtype` on `device`. Raises `StartupError` that lists what does not fit."""
    check_tensors(checkpoint)
    config = checkpoint.config

    def read(*names: str) -> Tensor:
        parts = [checkpoint.tensor(name).to(dtype) for name in names]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(device)

    def layer(index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}."
        qkv = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        return DecoderLayer(
            attention_norm=norm(prefix + "input_layernorm.weight"),
            qkv=Linear(
                read(*(name + ".weight" for name in qkv)),
                read(*(name + ".bias" for name in qkv)) if config.qkv_bias else None,
            ),
            q_norm=norm(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=norm(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
            output=Linear(read(prefix + "self_attn.o_proj.weight")),
            mlp_norm=norm(prefix + "post_attention_layernorm.weight"),
            mlp=GatedMLP(
                gate_up=Linear(read(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight")),
                down=Linear(read(prefix + "mlp.down_proj.weight")),
            ),
        )

    def norm(name: str) -> RMSNorm:
        return RMSNorm(read(name), config.norm_eps)

    embedding = read("model.embed_tokens.weight")
    return Decoder(
        config=config,
        embedding=Embedding(embedding),
        layers=tuple(layer(index) for index in range(config.num_layers)),
        norm=norm("model.norm.weight"),
        head=Linear(embedding if config.tied_embeddings else read("lm_head.weight")),
        rotary=RotaryTable(config, num_positions, device),
    )


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

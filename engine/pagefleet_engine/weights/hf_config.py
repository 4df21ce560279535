"""`config.json` of a Hugging Face folder as a `ModelConfig`. Data only: code in such a folder is never run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagefleet_engine.errors import StartupError
from pagefleet_engine.models.config import ModelConfig, RopeScaling

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def read_hf_config(folder: Path) -> ModelConfig:
    """Raises `StartupError` for a file that is missing, broken, or describes a model that we do not have."""
    path = folder / "config.json"
    raw = read_json(path)
    names = raw.get("architectures") or ["none"]
    if names[0] not in ARCHITECTURES:
        raise StartupError(f"{path}: architecture {names[0]!r} is not supported; use one of {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[names[0]]
    _check_activation(path, raw)
    try:
        heads = int(raw["num_attention_heads"])
        return ModelConfig(
            architecture=architecture,
            num_layers=int(raw["num_hidden_layers"]),
            hidden_size=int(raw["hidden_size"]),
            num_heads=heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
            intermediate_size=int(raw["intermediate_size"]),
            vocab_size=int(raw["vocab_size"]),
            context_len=_context_len(raw),
            rope_base=float(_rope(raw).get("rope_theta", 10000.0)),
            norm_eps=float(raw["rms_norm_eps"]),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            rope_scaling=_rope_scaling(path, _rope(raw)),
            qkv_bias=bool(raw.get("attention_bias", architecture == "qwen2")),
            qk_norm=architecture == "qwen3",
        )
    except KeyError as error:
        raise StartupError(f"{path}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise StartupError(f"{path}: {error}") from error


def _check_activation(path: Path, raw: Mapping[str, Any]) -> None:
    """All four families gate with SiLU; with another function the same weights give other logits, silently."""
    found = raw.get("hidden_act", "silu")
    if found not in ("silu", "swish"):
        raise StartupError(f"{path}: hidden_act {found!r} is not supported; silu is")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `StartupError` with the file's name."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise StartupError(f"{path}: no valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path}: a JSON object is expected")
    return value


def _context_len(raw: Mapping[str, Any]) -> int:
    """Within its sliding window a model attends to everything, so the window is the context that we offer."""
    context = int(raw["max_position_embeddings"])
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    return min(context, int(window)) if window else context


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary parameters, wherever this version of the format keeps them."""
    found = dict(raw.get("rope_scaling") or {}) | dict(raw.get("rope_parameters") or {})
    return {"rope_theta": raw["rope_theta"], **found} if "rope_theta" in raw else found


def _rope_scaling(path: Path, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise StartupError(f"{path}: rotary scaling {kind!r} is not supported; llama3 is")
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_len=int(rope["original_max_position_embeddings"]),
    )

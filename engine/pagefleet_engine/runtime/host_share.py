"""How many bytes a model takes on a CPU beside its frames: weights, one step and the process. Arithmetic alone.

Weights are counted before they are read: memory of a pool is taken page by page while it fills, so a pool that leaves
them no room ends the process under load and not at the start. Attention reads one request and one layer at a time.
"""

from __future__ import annotations

import math

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.layers.packed import BLOCK
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.scoring import SLICE_ROWS
from pagefleet_engine.weights.checkpoint import Checkpoint, expected_shapes

PROCESS = 128 * 2**20
"""Bytes kept for what Python, tokeniser and server grow by after the start, on each rank."""
RANK = 256 * 2**20
"""Bytes of a further rank's interpreter and libraries; this process's are counted as used already."""
_FP32 = 4


def model_bytes(
    config: ModelConfig, arguments: EngineArguments, *, itemsize: int, num_positions: int, is_packed: bool
) -> int:
    """Bytes of one rank, whose part of the model is `config`, with weights and activations of `itemsize` bytes."""
    tables = 2 * num_positions * config.head_dim * _FP32
    return (
        weight_bytes(config, itemsize=itemsize, is_packed=is_packed)
        + tables
        + step_bytes(config, arguments, itemsize=itemsize, num_positions=num_positions)
        + PROCESS
        + (RANK if arguments.tensor_parallel_size > 1 else 0)
    )


def weight_bytes(config: ModelConfig, *, itemsize: int, is_packed: bool) -> int:
    """Every tensor once, and projections a second time in four bits where the loader keeps them so."""
    shapes = expected_shapes(config)
    packed = sum(math.prod(shapes[name]) for name in shapes if is_packed and _is_projection(name, config))
    # a block of 32 weights: 16 bytes of codes, scale and zero in two bytes each
    return sum(math.prod(shape) for shape in shapes.values()) * itemsize + packed // BLOCK * (BLOCK // 2 + 4)


def step_bytes(config: ModelConfig, arguments: EngineArguments, *, itemsize: int, num_positions: int) -> int:
    """The widest moment of the largest step: activations of a layer, one request's keys and values, and logits."""
    widths = 6 * config.hidden_size + 2 * (config.q_size + 2 * config.kv_size) + 3 * config.intermediate_size
    activations = arguments.max_num_batched_tokens * widths * itemsize
    masks = arguments.max_num_batched_tokens * num_positions * itemsize
    context = 2 * config.kv_size * num_positions * (_FP32 + itemsize)
    logits = 3 * max(arguments.max_num_seqs, SLICE_ROWS) * config.vocab_size * _FP32
    return max(activations + masks + context, logits)


def keeps_four_bits(checkpoint: Checkpoint) -> bool:
    """The file has a projection of the first layer in four bits; the others are taken to be like that."""
    config = checkpoint.config
    first = [name for name in expected_shapes(config) if ".layers.0." in name and _is_projection(name, config)]
    return any(checkpoint.block_weights(name) is not None for name in first)


def _is_projection(name: str, config: ModelConfig) -> bool:
    """Biased q, k and v are never packed."""
    kinds = ("o_proj.weight", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
    unbiased = () if config.qkv_bias else ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    return name.endswith(kinds + unbiased)

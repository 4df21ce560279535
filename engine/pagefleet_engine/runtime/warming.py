"""Compile the kernels of a rank before its first step: one that a step had to wait for would hold all requests up."""

from __future__ import annotations

from collections.abc import Collection

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.backend import Attention, Backend
from pagefleet_engine.runtime.kv_cache import kernel_precision
from pagefleet_kernels.layout import FrameLayout
from pagefleet_kernels.variants import Model


def warm_kernels(
    backend: Backend,
    config: ModelConfig,
    layout: FrameLayout,
    precisions: Collection[Precision],
    device: torch.device,
) -> None:
    """Start every kernel that steps with these precisions can need. `config` and `layout` are the rank's own.

    Nothing is compiled by the references, and nothing is worth it in Triton's interpreter.
    """
    if not backend.is_gpu or backend.attention is not Attention.TRITON:
        return
    from pagefleet_kernels.warming import warm  # an engine without a GPU may have no Triton

    warm(attention_model(config, layout), [kernel_precision(p) for p in precisions], device)


def attention_model(config: ModelConfig, layout: FrameLayout) -> Model:
    """What attention is compiled for."""
    return Model(layout=layout, group=config.num_heads // config.num_kv_heads)

"""The decoder's elementwise layers as fused kernels: norm, rotation and gated activation, one launch each.

They round once at the end, in fp32 inside; the plain layers round between their steps as the models' authors do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from pagefleet_engine.layers.basic import GatedMLP, RMSNorm
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.llama import Decoder, DecoderLayer
from pagefleet_kernels.dispatch import Impl
from pagefleet_kernels.rms_norm import rms_norm
from pagefleet_kernels.rope import rope
from pagefleet_kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class FusedRMSNorm(RMSNorm):
    """`RMSNorm` in one kernel."""

    impl: Impl = "auto"

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, impl=self.impl)


@dataclass(frozen=True, slots=True)
class FusedGatedMLP(GatedMLP):
    """`GatedMLP` with its activation in one kernel."""

    impl: Impl = "auto"

    def __call__(self, x_TD: Tensor) -> Tensor:
        return self.down(silu_mul(self.gate_up(x_TD), impl=self.impl))


class FusedRotary(RotaryTable):
    """The same table, in fp32 halves as the kernel takes them."""

    def __init__(self, table: RotaryTable, impl: Impl) -> None:
        self._impl: Impl = impl
        half = table.cos_PK.shape[1] // 2
        self.cos_PK, self.sin_PK = (part[:, :half].contiguous() for part in (table.cos_PK, table.sin_PK))

    def at(self, positions_T: Tensor, dtype: object) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[T, K / 2]` of these positions, in fp32 whatever the model's dtype."""
        return self.cos_PK.index_select(0, positions_T), self.sin_PK.index_select(0, positions_T)

    def rotate(self, x_THK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope(x_THK, cos, sin, impl=self._impl)


def with_fused_layers(decoder: Decoder, impl: Impl) -> Decoder:
    """The same weights behind fused layers."""
    return replace(
        decoder,
        layers=tuple(_fused(layer, impl) for layer in decoder.layers),
        norm=_norm(decoder.norm, impl),
        rotary=FusedRotary(decoder.rotary, impl),
    )


def _fused(layer: DecoderLayer, impl: Impl) -> DecoderLayer:
    return replace(
        layer,
        attention_norm=_norm(layer.attention_norm, impl),
        q_norm=None if layer.q_norm is None else _norm(layer.q_norm, impl),
        k_norm=None if layer.k_norm is None else _norm(layer.k_norm, impl),
        mlp_norm=_norm(layer.mlp_norm, impl),
        mlp=FusedGatedMLP(layer.mlp.gate_up, layer.mlp.down, impl),
    )


def _norm(norm: RMSNorm, impl: Impl) -> FusedRMSNorm:
    return FusedRMSNorm(norm.weight, norm.eps, impl)

"""How far attention's result may be from exact arithmetic: the reference in fp64 and a bound for every element.

Errors, for weights p_j (the reference's softmax), scores s_j and a result o = sum_j p_j v_j:

    weights    p_j is rounded for the product with V: to bf16 (relative 2^-8), or with V's scale to fp16 (2^-11, and
               2^-25 absolute below its normal range), while the sum of the weights stays fp32. Roundings are
               independent, so their sum grows with sqrt(sum p_j^2 a_j^2), a_j the size of what is multiplied.
    keys       INT8 and INT4 keys are products and sums of fp16 numbers; a score that is off by e_j moves the result by
               p_j e_j (v_j - o), again independently for every key.
    sums       fp32 accumulation of n / 16 steps of 16 products. Tensor cores cut where others round: 2^-22 a step.
    result     half a unit of its dtype.

A rounding of size u is uniform in [-u, u], of variance u^2 / 3. Independent ones are bounded by six standard deviations
(of 10^6 elements none exceeds it by chance in 500 runs) or by their sum, whichever is less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagefleet_kernels.layout import Precision
from pagefleet_kernels.tables import Masking

UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""Largest relative rounding error of a dtype."""

_HALF, _HALF_FLOOR, _SHIFT = 2.0**-11, 2.0**-25, 2.0**10
_STEP, _DEPTH = 2.0**-22, 16
_DEVIATIONS = 6.0
_LARGEST_CODE = {
    Precision.BF16: 0.0,  # bf16 has fp32's range
    Precision.FP8_E4M3: 448.0,
    Precision.FP8_E5M2: 57344.0,
    Precision.INT8: 127.0,
    Precision.INT4: 15.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The n tokens that a query sees, in fp64, and how their parts are rounded inside the kernels.

    Legend: n tokens, H KV heads, D head dim, A query heads, G query heads of one KV head.
    """

    keys: torch.Tensor
    """[n, H, D]"""
    values: torch.Tensor
    """[n, H, D]"""
    key_error: torch.Tensor
    """[n, H, D]: of an element of K"""
    value_error: torch.Tensor
    """[n, H, D]: of an element of V times its weight, relative to the weight"""
    value_size: torch.Tensor
    """[n, H, D]: of the terms that are added up for an element of V"""
    floor: torch.Tensor
    """[n]: what a weight below fp16's normal range loses, relative to the largest weight"""

    def only(self, index: slice | torch.Tensor) -> Seen:
        """Some of the tokens."""
        return Seen(
            keys=self.keys[index],
            values=self.values[index],
            key_error=self.key_error[index],
            value_error=self.value_error[index],
            value_size=self.value_size[index],
            floor=self.floor[index],
        )


def seen_group(keys: torch.Tensor, values: torch.Tensor, precision: Precision) -> Seen:
    """One group [n, H, D] as a query sees it: raw as `BF16`, else the dequantised values of a frame."""
    keys, values = keys.double(), values.double()
    key_error, size, unit = torch.zeros_like(keys), values.abs(), _HALF
    low = torch.zeros_like(values)
    if precision is Precision.BF16:
        unit = UNITS[torch.bfloat16]
    elif precision is Precision.INT8:
        key_error = _HALF * keys.abs()
    elif precision is Precision.INT4:
        # code * scale is rounded, and so is its sum with the minimum; the smallest value of a channel is its minimum
        key_error = _HALF * ((keys - keys.amin(0)) + keys.abs())
        low = values.amin(-1, keepdim=True)
        size = (values - low) + low.abs()
    return Seen(
        keys=keys,
        values=values,
        key_error=key_error,
        value_error=unit * (values - low).abs(),
        value_size=size,
        floor=keys.new_full((keys.shape[0],), _HALF_FLOOR / _SHIFT * _LARGEST_CODE[precision]),
    )


def joined(groups: list[Seen]) -> Seen:
    """Groups one after the other."""
    return Seen(**{name: torch.cat([getattr(group, name) for group in groups]) for name in Seen.__dataclass_fields__})


def bounded_attention(
    query: torch.Tensor, seen: Seen, scale: float, masking: Masking, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query [A, D]: its attention in fp64, and the largest error of a kernel's result in `dtype`; [A, D] each."""
    rows = query.double().view(seen.keys.shape[1], -1, query.shape[1])
    p = attention_weights(query, seen.keys, scale, masking)
    want = torch.einsum("hgj,jhd->hgd", p, seen.values)
    error = _weight_error(p, seen) + _key_error(rows, p, want, seen, scale) + _sum_error(rows, p, want, seen, scale)
    if masking.soft_cap is not None:  # tanh is a difference of numbers of the size of the cap
        error += _STEP * masking.soft_cap * torch.einsum("hgj,jhd->hgd", p, seen.value_size) * 2
    allowed = error + UNITS[dtype] * (want.abs() + error)
    return want.reshape(query.shape), allowed.reshape(query.shape)


def attention_weights(query: torch.Tensor, keys: torch.Tensor, scale: float, masking: Masking) -> torch.Tensor:
    """Softmax [H, G, n] of one query [A, D] over keys [n, H, D], in fp64."""
    rows = query.double().view(keys.shape[1], -1, query.shape[1])
    scores = torch.einsum("jhd,hgd->hgj", keys, rows) * scale
    if masking.soft_cap is not None:
        scores = masking.soft_cap * torch.tanh(scores / masking.soft_cap)
    if masking.window is not None:
        scores[..., masking.sinks : max(keys.shape[0] - masking.window, 0)] = -torch.inf
    return torch.softmax(scores, -1)


def _weight_error(p: torch.Tensor, seen: Seen) -> torch.Tensor:
    floor = (p.amax(-1, keepdim=True) * seen.floor)[..., None]
    variance = torch.einsum("hgj,jhd->hgd", p.square(), seen.value_error.square()) + floor.square().sum(2)
    most = torch.einsum("hgj,jhd->hgd", p, seen.value_error) + floor.sum(2)
    return torch.minimum(_DEVIATIONS * (variance / 3).sqrt(), most)


def _key_error(rows: torch.Tensor, p: torch.Tensor, want: torch.Tensor, seen: Seen, scale: float) -> torch.Tensor:
    """The variance of sum_j p_j e_j (v_j - o), multiplied out."""
    score = scale**2 / 3 * torch.einsum("hgd,jhd->hgj", rows.square(), seen.key_error.square())
    weight = p.square() * score
    squares = torch.einsum("hgj,jhd->hgd", weight, seen.values.square())
    crossed = torch.einsum("hgj,jhd->hgd", weight, seen.values)
    variance = squares - 2 * want * crossed + want.square() * weight.sum(-1, keepdim=True)
    return _DEVIATIONS * variance.clamp(min=0).sqrt()


def _sum_error(rows: torch.Tensor, p: torch.Tensor, want: torch.Tensor, seen: Seen, scale: float) -> torch.Tensor:
    size = torch.einsum("hgj,jhd->hgd", p, seen.value_size) + want.abs()
    score = torch.einsum("hgd,jhd->hgj", rows.abs(), seen.keys.abs()).amax(-1, keepdim=True) * scale
    steps = math.ceil(p.shape[-1] / _DEPTH) + 4
    score_steps = math.ceil(rows.shape[-1] / _DEPTH) + 2
    return _STEP * (steps + score_steps * score) * size

"""The bound of attention's error: exact values where arithmetic gives them, and tight enough for one lost token."""

import pytest
import torch

from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking
from pagefleet_kernels.testing import Cache
from pagefleet_kernels.tolerance import attention_weights, bounded_attention, seen_group

SHAPES = {
    "head 16": (FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8), 4),
    "head 64": (FrameLayout(num_layers=2, num_kv_heads=3, head_dim=64), 9),
    "head 96": (FrameLayout(num_layers=2, num_kv_heads=1, head_dim=96), 5),
}
LENGTHS = [2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 35, 60, 70, 90, 113, 130, 140, 200, 310, 600]
"""Those of the kernel tests."""


def of_length(layout, heads, length, precision, dtype=torch.float32):
    """What the last token sees, softmax weights, the exact result and its bound."""
    cache = Cache(layout, 4)
    sequence = cache.add(length, [precision])
    seen = cache.seen(sequence, layout.num_layers - 1, length - 1)
    query = torch.randn(heads, layout.head_dim, generator=cache.generator).bfloat16()
    scale = layout.head_dim**-0.5
    weights = attention_weights(query, seen.keys, scale, Masking())
    want, allowed = bounded_attention(query, seen, scale, Masking(), dtype)
    return seen, weights, want, allowed


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("layout", "heads"), SHAPES.values(), ids=SHAPES.keys())
def test_whichever_token_is_lost_the_result_leaves_the_bound_at_every_length(layout, heads, precision):
    for length in [n for n in LENGTHS if layout.head_dim > 16 or n <= 200]:
        seen, p, want, allowed = of_length(layout, heads, length, precision)
        shape = p.shape[:2] + want.shape[-1:]
        off = (want.view(shape)[:, :, None] - seen.values.transpose(0, 1)[:, None]) * (p / (1 - p))[..., None]
        least = (off.abs() / allowed.view(shape)[:, :, None]).amax((0, 1, 3)).min()
        assert least > 1, f"a token of {length} can be lost"


def whole(error):
    """A bound of 8 elements, with the rounding of an fp32 result."""
    return torch.full((1, 8), error + 2.0**-24 * (1 + error), dtype=torch.float64)


def test_one_token_is_exact_but_for_the_sums_and_the_result():
    layout, heads = SHAPES["head 16"]
    for dtype, unit in ((torch.float32, 2.0**-24), (torch.bfloat16, 2.0**-8)):
        _, _, want, allowed = of_length(layout, heads, 1, Precision.BF16, dtype)
        assert bool((allowed >= unit * want.abs()).all())
    tokens = torch.ones(1, 1, 8)
    _, allowed = bounded_attention(torch.zeros(1, 8), seen_group(tokens, tokens, Precision.FP8_E4M3), 1.0, Masking(),
                                   torch.float32)  # fmt: skip
    weight, floor, sums = 2.0**-11, 2.0**-35 * 448, 2.0**-22 * 5 * 2
    error = min(6 / 3**0.5 * (weight**2 + floor**2) ** 0.5, weight + floor) + sums
    torch.testing.assert_close(
        allowed, torch.full((1, 8), error + 2.0**-24 * (1 + error), dtype=torch.float64), rtol=1e-9, atol=0
    )


def test_many_equal_weights_average_their_roundings():
    """n equal weights round n times, each by up to 2^-8 / n, in directions of their own."""
    keys, values = torch.zeros(1024, 1, 8), torch.ones(1024, 1, 8)
    _, allowed = bounded_attention(torch.zeros(1, 8), seen_group(keys, values, Precision.BF16), 1.0, Masking(),
                                   torch.float32)  # fmt: skip
    error = 6 / 3**0.5 * 2.0**-8 / 32 + 2.0**-22 * (1024 / 16 + 4) * 2
    torch.testing.assert_close(
        allowed, torch.full((1, 8), error + 2.0**-24 * (1 + error), dtype=torch.float64), rtol=1e-9, atol=0
    )


def test_integer_keys_are_rounded_in_fp16_and_others_are_not():
    keys = torch.randn(28, 1, 16, generator=torch.Generator().manual_seed(0))
    errors = {p: float(seen_group(keys, keys, p).key_error.max()) for p in Precision}
    assert errors[Precision.BF16] == errors[Precision.FP8_E4M3] == errors[Precision.FP8_E5M2] == 0
    assert errors[Precision.INT8] == pytest.approx(float(keys.abs().max()) * 2**-11)
    assert errors[Precision.INT4] > errors[Precision.INT8]

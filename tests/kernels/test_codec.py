"""Quantisation against independent arithmetic: what each precision can represent, worked out value by value."""

import math

import pytest
import torch

from pagefleet_kernels.codec import bf16_above, decode_tiles, encode_tiles
from pagefleet_kernels.layout import FrameLayout, Part, Precision

LAYOUT = FrameLayout(num_layers=1, num_kv_heads=1, head_dim=64)
QUANTISED = [p for p in Precision if p is not Precision.BF16]


def round_trip(values, part, precision, layout=LAYOUT):
    tiles, scales = encode_tiles(values, part, precision, layout)
    assert tiles.shape[-1] == layout.tile_bytes
    return decode_tiles(tiles, scales, part, precision, layout)


def e4m3(code):
    """The value of one E4M3 code by its definition: bias 7, no infinity, NaN at all ones."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def e5m2(code):
    """The value of one E5M2 code by its definition: bias 15, infinity and NaN as in IEEE."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 2 & 31, code & 3
    if exponent == 31:
        return math.nan if mantissa else sign * math.inf
    return sign * (mantissa / 4 * 2.0**-14 if exponent == 0 else (1 + mantissa / 4) * 2.0 ** (exponent - 15))


@pytest.mark.parametrize(("precision", "value"), [(Precision.FP8_E4M3, e4m3), (Precision.FP8_E5M2, e5m2)])
@pytest.mark.parametrize("part", list(Part))
def test_all_256_fp8_codes_decode_exactly(precision, value, part):
    codes = torch.arange(256, dtype=torch.uint8).repeat(LAYOUT.tile_bytes // 256)
    got = decode_tiles(codes, torch.tensor(1.0), part, precision, LAYOUT)
    rows = codes.view(32, 64) if part is Part.KEYS else codes.view(64, 32).T
    want = torch.tensor([[value(int(c)) for c in row] for row in rows])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("precision", [Precision.FP8_E4M3, Precision.FP8_E5M2])
@pytest.mark.parametrize("part", list(Part))
def test_fp8_picks_the_nearest_code(precision, part):
    value = e4m3 if precision is Precision.FP8_E4M3 else e5m2
    grid = torch.tensor([v for v in map(value, range(256)) if math.isfinite(v)], dtype=torch.float64)
    torch.manual_seed(0)
    x = torch.randn(32, 64).bfloat16().float()
    got = round_trip(x, part, precision).double()
    scale = float(x.abs().max() / float(grid.max()))
    nearest = (x.double()[..., None] - grid * scale).abs().amin(-1)
    # one rounding of the scale and one of x / scale can turn the choice at a tie; the distance stays the same to 1e-6
    torch.testing.assert_close((got - x.double()).abs(), nearest, rtol=1e-5, atol=1e-6 * scale * float(grid.max()))


INTEGER_STEPS = {Precision.INT8: 127 * 2, Precision.INT4: 15}


@pytest.mark.parametrize("precision", list(INTEGER_STEPS))
@pytest.mark.parametrize("part", list(Part))
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_integer_codes_are_within_half_a_step_on_their_own_axis(precision, part, head_dim):
    layout = FrameLayout(num_layers=1, num_kv_heads=1, head_dim=head_dim)
    torch.manual_seed(1)
    x = (torch.randn(layout.tokens_per_frame(precision), head_dim) + 0.5).bfloat16().float()
    x[:, 3] = (x[:, 3] * 40).bfloat16()  # an outlier channel, as keys have it
    axis = 0 if part is Part.KEYS else 1
    if precision is Precision.INT8:
        span = 2 * x.abs().amax(axis, keepdim=True)
    else:
        span = x.amax(axis, keepdim=True) - x.amin(axis, keepdim=True)
    # bf16 rounding of the minimum (8 bits of up to the largest value) and of the scale widens a step by up to 2^-7
    step = (span + x.abs().amax(axis, keepdim=True) * 2.0**-7) / INTEGER_STEPS[precision] * (1 + 2.0**-7)
    error = (round_trip(x, part, precision, layout) - x).abs()
    assert bool((error <= step / 2 * (1 + 1e-5)).all())


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("part", list(Part))
def test_zeros_stay_zeros(precision, part):
    x = torch.zeros(LAYOUT.tokens_per_frame(precision), 64)
    assert bool((round_trip(x, part, precision) == 0).all())


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("part", list(Part))
def test_subnormals_become_zeros_or_stay(precision, part):
    x = torch.full((LAYOUT.tokens_per_frame(precision), 64), 2.0**-130)
    assert bool((round_trip(x, part, precision).abs() <= 2.0**-129).all())


@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("part", list(Part))
def test_a_nan_is_kept_and_spoils_only_its_own_axis(precision, part):
    x = torch.randn(LAYOUT.tokens_per_frame(precision), 64, generator=torch.Generator().manual_seed(2))
    clean = round_trip(x, part, precision)
    x[5, 7] = torch.nan
    got = round_trip(x, part, precision)
    assert bool(got[5, 7].isnan())
    others = torch.ones_like(x, dtype=torch.bool)
    if precision in INTEGER_STEPS and part is Part.KEYS:
        others[:, 7] = False
    elif precision in INTEGER_STEPS:
        others[5] = False
    else:
        others[5, 7] = False
    torch.testing.assert_close(got[others], clean[others], rtol=0, atol=0)


@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("part", list(Part))
def test_an_infinity_saturates_and_the_scale_comes_from_finite_values(precision, part):
    x = torch.randn(LAYOUT.tokens_per_frame(precision), 64, generator=torch.Generator().manual_seed(3))
    largest = float(x.abs().max())
    x[4, 2] = torch.inf
    got = round_trip(x, part, precision)
    assert bool(got.isfinite().all())
    assert 0 < float(got[4, 2]) <= largest * 1.02


@pytest.mark.parametrize("part", list(Part))
def test_one_huge_outlier_costs_fp8_no_more_than_its_exponents(part):
    x = torch.full((32, 64), 1.0)
    x[0, 0] = 20_000.0
    got = round_trip(x, part, Precision.FP8_E4M3)
    assert float(got[0, 0]) == pytest.approx(20_000.0, rel=2**-8)
    # 1 / (20000 / 448) = 0.0224 lies among E4M3's normal numbers: three bits of mantissa remain
    assert float((got[1:] - 1.0).abs().max()) <= 2.0**-4


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT4])
def test_one_huge_outlier_costs_integers_its_own_channel_only(precision):
    x = torch.randn(LAYOUT.tokens_per_frame(precision), 64, generator=torch.Generator().manual_seed(4))
    clean = round_trip(x, Part.KEYS, precision)
    x[0, 9] = 30_000.0
    got = round_trip(x, Part.KEYS, precision)
    others = torch.arange(64) != 9
    torch.testing.assert_close(got[:, others], clean[:, others], rtol=0, atol=0)


def test_bf16_above_is_the_next_bf16_or_the_value_itself():
    x = torch.tensor([1.0, 1.0 + 2**-20, 1.0 - 2**-20, 3e-30, 65504.0])
    got = bf16_above(x)
    assert bool((got >= x).all())
    assert bool((got == got.bfloat16().float()).all())
    assert got[:3].tolist() == [1.0, 1.0 + 2**-7, 1.0]

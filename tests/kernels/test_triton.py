"""The Triton kernels in the interpreter, against plain attention over the dequantised cache and the codec's bytes."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated

import pytest

from pagefleet_kernels.checks import check_copy, check_decode, check_prefill, check_seal, check_write_open
from pagefleet_kernels.layout import FrameLayout, Precision

TINY = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)


@pytest.mark.parametrize("precision", list(Precision))
def test_decode(precision):
    check_decode(TINY, [0, 1, 8, 9, 17, 70], [precision], heads=4)


@pytest.mark.parametrize("precision", list(Precision))
def test_prefill(precision):
    check_prefill(TINY, [(0, 1), (0, 40), (5, 12), (30, 30), (47, 90)], [precision], heads=4)


@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.BF16])
@pytest.mark.parametrize("from_open", [False, True])
def test_seal(precision, from_open):
    check_seal(TINY, precision, from_open=from_open)


def test_write_open():
    check_write_open(TINY)


def test_copy():
    check_copy(TINY)

"""The frame layout: sizes and offsets by independent arithmetic, and nothing that overlaps."""

import subprocess
import sys

import pytest

from pagefleet_kernels.layout import FrameLayout, Part, Precision

SMOL = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64)
LLAMA_8B = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)


def test_a_frame_of_smollm2_is_sixteen_bf16_tokens_and_its_scales():
    assert SMOL.tile_bytes == 2048
    assert SMOL.payload_bytes == 16 * 30 * 3 * 64 * 2 * 2 == 368_640
    assert SMOL.frame_bytes == 369_408  # 368,640 + 30 * 2 * 3 * 4, up to a multiple of 256


def test_a_frame_of_llama_3_8b_is_two_mebibytes_and_its_scales():
    assert LLAMA_8B.frame_bytes == 2 * 2**20 + 2048


TOKENS = {
    "head 64": (SMOL, {"bf16": 16, "fp8_e4m3": 32, "fp8_e5m2": 32, "int8": 30, "int4": 56}),
    "head 128": (LLAMA_8B, {"bf16": 16, "fp8_e4m3": 32, "fp8_e5m2": 32, "int8": 30, "int4": 56}),
    "a head too narrow for one V scale per row": (
        FrameLayout(num_layers=1, num_kv_heads=1, head_dim=16),
        {"bf16": 16, "fp8_e4m3": 32, "fp8_e5m2": 32, "int8": 28, "int4": 40},
    ),
    "blocks of 64": (
        FrameLayout(num_layers=1, num_kv_heads=1, head_dim=64, block_size=64),
        {"bf16": 64, "fp8_e4m3": 128, "fp8_e5m2": 128, "int8": 124, "int4": 224},
    ),
    "blocks of 8": (
        FrameLayout(num_layers=1, num_kv_heads=1, head_dim=64, block_size=8),
        {"bf16": 8, "fp8_e4m3": 16, "fp8_e5m2": 16, "int8": 14, "int4": 24},
    ),
}


@pytest.mark.parametrize(("layout", "expected"), TOKENS.values(), ids=TOKENS.keys())
def test_tokens_per_frame(layout, expected):
    assert {str(p): layout.tokens_per_frame(p) for p in Precision} == expected


def test_a_group_fills_these_open_frames_before_it_is_sealed():
    expected = {"bf16": 1, "fp8_e4m3": 2, "fp8_e5m2": 2, "int8": 2, "int4": 4}
    assert {str(p): LLAMA_8B.open_frames_per_group(p) for p in Precision} == expected


@pytest.mark.parametrize("head_dim", [8, 16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("precision", list(Precision))
def test_codes_and_scales_fit_into_a_tile(head_dim, block_size, precision):
    layout = FrameLayout(num_layers=1, num_kv_heads=1, head_dim=head_dim, block_size=block_size)
    form = layout.tile_format(precision)
    if precision is Precision.BF16:
        assert form.num_tokens * head_dim * 2 == layout.tile_bytes
        return
    assert form.code_rows * head_dim + form.scale_bytes * head_dim <= layout.tile_bytes  # K, scales per channel
    tail_bytes = 2 * block_size - form.code_rows
    assert form.scales_per_row * form.scale_bytes <= tail_bytes
    if form.scale_bytes:
        assert form.scales_per_row * head_dim >= form.num_tokens  # V, scales per token


def test_tiles_and_scales_cover_a_frame_without_overlap():
    layout = FrameLayout(num_layers=3, num_kv_heads=2, head_dim=16, block_size=8)
    spans = []
    for layer in range(3):
        for part in Part:
            for head in range(2):
                spans.append((layout.tile_offset(layer, part, head), layout.tile_bytes))
                spans.append((layout.scale_offset(layer, part, head), 4))
    spans.sort()
    ends = [start + size for start, size in spans]
    assert [start for start, _ in spans[1:]] == ends[:-1]
    assert spans[0][0] == 0
    assert ends[-1] <= layout.frame_bytes < ends[-1] + 256


def test_the_address_function_agrees_with_the_offsets():
    address = LLAMA_8B.address(5)
    assert address.frame_stride == LLAMA_8B.frame_bytes
    for part in Part:
        for head in (0, 7):
            index = part * 8 + head
            assert address.tile_base + index * LLAMA_8B.tile_bytes == LLAMA_8B.tile_offset(5, part, head)
            assert address.scale_base + index * 4 == LLAMA_8B.scale_offset(5, part, head)


BAD = {
    "no layers": ({"num_layers": 0}, "num_layers 0"),
    "an odd head": ({"head_dim": 20}, "head_dim 20: must be a multiple of 8"),
    "a block of 12": ({"block_size": 12}, "block_size 12: use one of 8, 16, 32, 64"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_a_layout_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        FrameLayout(**{"num_layers": 1, "num_kv_heads": 1, "head_dim": 64, **change})


def test_the_layout_loads_no_torch():
    code = "import sys, pagefleet_kernels.layout; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

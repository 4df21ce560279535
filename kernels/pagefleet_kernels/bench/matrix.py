"""The correctness cases of `check_gpu.py`: every op over head shapes, precisions, lengths and masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking

Case = tuple[str, str, dict[str, Any]]
"""Name, function of `pagefleet_kernels.checks`, its arguments."""

MIXED = [Precision.FP8_E4M3, Precision.BF16, Precision.INT4, Precision.INT8]
MIXES = {str(p): [p] for p in Precision} | {"mixed": MIXED}
MASKS = {"": Masking(), ", window": Masking(window=50, sinks=4), ", cap": Masking(soft_cap=3.0)}
MASKED_SHAPE = "SmolLM2 3/9 head 64"
SHAPES = {
    "Llama 8/32 head 128": (FrameLayout(num_layers=2, num_kv_heads=8, head_dim=128), 32),
    MASKED_SHAPE: (FrameLayout(num_layers=2, num_kv_heads=3, head_dim=64), 9),
    "4/4 head 80": (FrameLayout(num_layers=2, num_kv_heads=4, head_dim=80), 4),
    "1/5 head 96": (FrameLayout(num_layers=2, num_kv_heads=1, head_dim=96), 5),
    "2/16 head 128, blocks of 32": (FrameLayout(num_layers=1, num_kv_heads=2, head_dim=128, block_size=32), 16),
    "2/4 head 256": (FrameLayout(num_layers=1, num_kv_heads=2, head_dim=256), 4),
}
LENGTHS = [0, 1, 15, 16, 17, 31, 32, 33, 57, 113, 600]
CHUNKS = [(0, 1), (0, 200), (5, 12), (16, 33), (30, 30), (47, 310)]
TINY = FrameLayout(num_layers=1, num_kv_heads=2, head_dim=16, block_size=8)


def matrix(*, full: bool) -> Iterator[Case]:
    """All cases; without `full` one of each kind, small enough for Triton's interpreter."""
    if not full:
        same = {"layout": TINY, "heads": 4, "mix": [Precision.FP8_E4M3]}
        yield "decode", "check_decode", {**same, "lengths": [0, 1, 17, 20]}
        yield "prefill", "check_prefill", {**same, "chunks": [(0, 9), (17, 33)]}
        yield "seal", "check_seal", {"layout": TINY, "precision": Precision.FP8_E4M3, "from_open": True}
        yield from _moves("tiny", TINY)
        return
    for shape, (layout, heads) in SHAPES.items():
        for mix_name, mix in MIXES.items():
            for mask_name, masking in MASKS.items() if shape == MASKED_SHAPE else [("", Masking())]:
                same = {"layout": layout, "heads": heads, "mix": mix, "masking": masking, "num_frames": 260}
                label = f"{shape}, {mix_name}{mask_name}"
                yield f"decode {label}", "check_decode", {**same, "lengths": LENGTHS}
                yield f"decode in shares {label}", "check_decode", {**same, "lengths": [300, 0, 5], "splits": 7}
                yield f"prefill {label}", "check_prefill", {**same, "chunks": CHUNKS}
            if len(mix) == 1 and mix[0] is not Precision.BF16:
                for from_open in (False, True):
                    arguments = {"layout": layout, "precision": mix[0], "from_open": from_open}
                    yield f"seal {shape}, {mix_name}, from open {from_open}", "check_seal", arguments
        yield from _moves(shape, layout)


def _moves(shape: str, layout: FrameLayout) -> Iterator[Case]:
    yield f"write {shape}", "check_write_open", {"layout": layout}
    yield f"copy {shape}", "check_copy", {"layout": layout}

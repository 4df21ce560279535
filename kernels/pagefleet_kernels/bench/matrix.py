"""The correctness cases of `check_gpu.py`: every op over head shapes, precisions, lengths and masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pagefleet_kernels.bench import elementwise, moves
from pagefleet_kernels.bench.case import Case
from pagefleet_kernels.checks import check_copy, check_decode, check_prefill, check_seal, check_write_open
from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.tables import Masking

LIMIT_S = 120.0
"""A case of four precisions compiles up to a dozen kernels."""

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
FP8 = (Precision.FP8_E4M3, Precision.FP8_E5M2)
TINY = FrameLayout(num_layers=1, num_kv_heads=2, head_dim=16, block_size=8)


def matrix(device: str) -> Iterator[Case]:
    """All cases; on a CPU one of each kind, small enough for Triton's interpreter."""
    for name, check, arguments in _small() if device == "cpu" else _full():
        yield Case("correctness", name, partial(check, **arguments, device=device), limit_s=LIMIT_S)


Check = tuple[str, Callable[..., float], dict[str, Any]]
"""Name, check, its arguments but the device."""


def _small() -> Iterator[Check]:
    same = {"layout": TINY, "heads": 4, "mix": [Precision.FP8_E4M3]}
    yield "decode", check_decode, {**same, "lengths": [0, 1, 17, 20]}
    yield "prefill", check_prefill, {**same, "chunks": [(0, 9), (17, 33)]}
    yield "seal", check_seal, {"layout": TINY, "precision": Precision.FP8_E4M3, "from_open": True}
    yield from _moves("tiny", TINY, FP8[:1])
    yield from _elementwise("tiny", rows=3, heads=2, head_dim=16, hidden=48, middle=40)


def _full() -> Iterator[Check]:
    """The models' own shapes first."""
    layout, heads = SHAPES["Llama 8/32 head 128"]
    for precision in Precision:
        arguments = {"layout": layout, "precision": precision, "heads": heads}
        yield f"beyond 8 GiB, {precision}", moves.check_far, arguments
    for shape, (layout, heads) in SHAPES.items():
        for mix_name, mix in MIXES.items():
            yield from _attention(shape, layout, heads, mix_name, mix)
            if len(mix) == 1 and mix[0] is not Precision.BF16:
                for from_open in (False, True):
                    arguments = {"layout": layout, "precision": mix[0], "from_open": from_open}
                    yield f"seal {shape}, {mix_name}, from open {from_open}", check_seal, arguments
        yield from _moves(shape, layout, FP8)
    yield from _elementwise("Llama-3-8B", rows=37, heads=32, head_dim=128, hidden=4096, middle=14336)
    yield from _elementwise("SmolLM2", rows=5, heads=9, head_dim=64, hidden=576, middle=1536)
    yield from _elementwise("head 80", rows=1, heads=4, head_dim=80, hidden=320, middle=97)


def _attention(shape: str, layout: FrameLayout, heads: int, mix_name: str, mix: list[Precision]) -> Iterator[Check]:
    for mask_name, masking in MASKS.items() if shape == MASKED_SHAPE else [("", Masking())]:
        same = {"layout": layout, "heads": heads, "mix": mix, "masking": masking, "num_frames": 260}
        label = f"{shape}, {mix_name}{mask_name}"
        yield f"decode {label}", check_decode, {**same, "lengths": LENGTHS}
        yield f"decode in shares {label}", check_decode, {**same, "lengths": [300, 0, 5], "splits": 7}
        yield f"prefill {label}", check_prefill, {**same, "chunks": CHUNKS}


def _moves(shape: str, layout: FrameLayout, demoted: tuple[Precision, ...]) -> Iterator[Check]:
    yield f"write {shape}", check_write_open, {"layout": layout}
    yield f"copy {shape}", check_copy, {"layout": layout}
    yield f"swap {shape}", moves.check_swap, {"layout": layout, "count": 5}
    for precision in demoted:
        yield f"demote {shape}, {precision}", moves.check_demote, {"layout": layout, "precision": precision}


def _elementwise(model: str, *, rows: int, heads: int, head_dim: int, hidden: int, middle: int) -> Iterator[Check]:
    yield f"rms_norm {model}", elementwise.check_rms_norm, {"rows": rows, "size": hidden}
    yield f"rope {model}", elementwise.check_rope, {"rows": rows, "heads": heads, "head_dim": head_dim}
    yield f"silu_mul {model}", elementwise.check_silu_mul, {"rows": rows, "size": middle}

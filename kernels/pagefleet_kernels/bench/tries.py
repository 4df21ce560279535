"""Launch parameters that are tried beside the rules of `launch`, for Llama-3-8B's shape; the long tests compile them.

Each fits an H200 and keeps its hot loop in registers, by the compiler's word; how fast it is, only a GPU can say.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pagefleet_kernels.launch import DecodeLaunch, PrefillLaunch
from pagefleet_kernels.layout import Precision

MOST_SHARED: Final = 232_448
"""Bytes of shared memory that one program may have on sm_90."""


class DecodeTry(NamedTuple):
    """Launch parameters, and the shared bytes that Triton 3.7.1 gives them on sm_90."""

    launch: DecodeLaunch
    shared_bytes: int


class PrefillTry(NamedTuple):
    """As `DecodeTry`."""

    launch: PrefillLaunch
    shared_bytes: int


def _decode(frames: int, num_warps: int, num_stages: int, shared_bytes: int) -> DecodeTry:
    return DecodeTry(DecodeLaunch(frames=frames, num_warps=num_warps, num_stages=num_stages), shared_bytes)


def _prefill(rows: int, frames: int, num_warps: int, num_stages: int, shared_bytes: int) -> PrefillTry:
    launch = PrefillLaunch(rows=rows, frames=frames, raw=32, num_warps=num_warps, num_stages=num_stages)
    return PrefillTry(launch, shared_bytes)


DECODE_TRIES: Final = {
    Precision.BF16: [
        _decode(4, 4, 3, 39_424),
        _decode(4, 4, 5, 72_704),
        _decode(4, 2, 4, 39_168),
        _decode(8, 4, 4, 74_240),
        _decode(2, 1, 5, 37_120),
    ],
    Precision.FP8_E4M3: [
        _decode(4, 4, 3, 46_592),
        _decode(4, 4, 5, 80_896),
        _decode(4, 8, 3, 47_616),
        _decode(2, 4, 5, 45_568),
        _decode(2, 2, 4, 27_392),
        _decode(2, 1, 4, 25_344),
    ],
    Precision.INT8: [_decode(1, 4, 4, 24_964), _decode(1, 2, 4, 20_480), _decode(1, 1, 4, 20_480)],
    Precision.INT4: [_decode(1, 4, 4, 24_964), _decode(1, 2, 4, 20_480), _decode(1, 1, 4, 20_480)],
}

# A frame holds 16 tokens in BF16 and 32 in FP8: 128 keys at once spill in either.
PREFILL_TRIES: Final = {
    Precision.BF16: [
        _prefill(128, 4, 8, 2, 98_304),
        _prefill(64, 4, 4, 3, 82_432),
        _prefill(128, 2, 8, 4, 65_792),
        _prefill(64, 2, 4, 4, 49_408),
    ],
    Precision.FP8_E4M3: [
        _prefill(128, 2, 8, 2, 115_200),
        _prefill(64, 2, 4, 3, 83_200),
        _prefill(128, 1, 8, 4, 90_752),
        _prefill(128, 2, 8, 4, 115_968),
    ],
}

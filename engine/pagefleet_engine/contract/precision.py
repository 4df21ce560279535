"""The precisions in which a frame of the KV cache can be kept."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """How the sealed frames of a request store K and V. Open frames are always BF16."""

    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    INT4 = "int4"

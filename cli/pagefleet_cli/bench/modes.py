"""The ways to keep KV that `bench engine` compares on the same bytes. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagefleet_engine.contract.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One of them. `reserves`: every request holds room for the longest one from its start, as before paging."""

    name: str
    precision: Precision
    reserves: bool = False

    def max_num_seqs(self, *, num_frames: int, block_size: int, max_model_len: int, most: int) -> int:
        """Requests that may run at once. What is reserved whole bounds them; frames bound them as they fill."""
        if not self.reserves:
            return most
        return max(1, min(most, num_frames * block_size // max_model_len))


CONTIGUOUS: Final = Mode(name="contiguous", precision=Precision.BF16, reserves=True)
PAGED_BF16: Final = Mode(name="paged bf16", precision=Precision.BF16)
PAGED_FP8: Final = Mode(name="paged fp8", precision=Precision.FP8_E4M3)
PAGED_INT4: Final = Mode(name="paged int4", precision=Precision.INT4)
MODES: Final = (CONTIGUOUS, PAGED_BF16, PAGED_FP8, PAGED_INT4)

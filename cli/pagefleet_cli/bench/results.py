"""What `bench quality` found, as plain numbers: for the table, the plot and the JSON file. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pagefleet_cli.errors import CommandError
from pagefleet_engine.contract.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The most that a precision may cost; None where nothing was promised."""

    kld: float | None
    perplexity_change: float | None  # a share: 0.004 is +0.4 %


TARGETS: Final[Mapping[Precision, Target]] = {
    Precision.FP8_E4M3: Target(kld=0.005, perplexity_change=0.004),
    Precision.FP8_E5M2: Target(kld=None, perplexity_change=0.025),
    Precision.INT8: Target(kld=0.0005, perplexity_change=None),
    Precision.INT4: Target(kld=None, perplexity_change=0.02),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """One precision over the windows of the text."""

    precision: Precision
    kld: float  # mean, nat per token
    kld_p99: float  # 99 % of the positions are below
    perplexity: float
    perplexity_change: float  # against BF16, as a share
    agreement: float  # share of positions with BF16's most likely token

    @property
    def meets_target(self) -> bool | None:
        """None where there is no target."""
        target = TARGETS.get(self.precision)
        if target is None:
            return None
        enough = target.kld is None or self.kld <= target.kld
        return enough and (target.perplexity_change is None or self.perplexity_change <= target.perplexity_change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean KLD of one precision over stretches of a long context, or over the turns of conversations."""

    precision: Precision
    kld: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityResult:
    """One run of the measurement."""

    model: str
    text: str
    dtype: str  # of weights and activations; KV is BF16 or sealed in any case
    num_tokens: int  # scored in windows
    window: int  # tokens of one window
    chunk: int  # tokens of one prefill step
    bf16_perplexity: float
    scores: tuple[TextScore, ...]
    chunking_kld: float  # BF16 against itself in other chunks: the floor below which nothing is resolved
    positions: tuple[int, ...]  # where each stretch of the long context ends; empty when there was none
    by_position: tuple[Curve, ...]
    num_conversations: int
    turn_tokens: tuple[int, ...]  # mean context at the end of each turn
    turn_hits: tuple[int, ...]  # of them in the prefix cache when the turn began, mean
    by_turn: tuple[Curve, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """All of it, with the verdicts on the targets."""
        found = asdict(self)
        for entry, score in zip(found["scores"], self.scores, strict=True):
            entry["meets_target"] = score.meets_target
        return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Raises `CommandError`."""
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--json {path}: {error.strerror}") from error

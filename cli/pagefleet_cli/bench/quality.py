"""Measures what each KV precision costs in quality, against BF16 KV, through the engine's paged path."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, TypeVar

import numpy as np

from pagefleet_cli.bench.conversation import TurnScore, score_conversation
from pagefleet_cli.bench.divergence import Scores, join
from pagefleet_cli.bench.forced import BUDGET, begin_chunking, begin_text
from pagefleet_cli.bench.models import Model
from pagefleet_cli.bench.results import Curve, QualityResult, TextScore
from pagefleet_cli.bench.workers import Workers
from pagefleet_cli.errors import CommandError
from pagefleet_engine.contract.precision import Precision

STRETCHES: Final = 16
"""Parts of the long context whose means are reported."""
_CHUNKING_WINDOWS: Final = 2
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    num_tokens: int = 20_480
    window: int = 2048
    long_context: int = 8192  # 0: none
    num_conversations: int = 4  # 0: none
    answer_tokens: int = 96


def measure(
    model: Model,
    workers: Workers,
    text: str,
    origin: str,
    precisions: Sequence[Precision],
    extent: Extent,
    *,
    questions: Sequence[str],
    say: Say,
) -> QualityResult:
    """All parts; workers begin with the longest. Raises `CommandError` for a text that is too short."""
    began = time.monotonic()
    windows, long = _cut(model, text, extent)
    long_pending = begin_text(workers, model, long, precisions) if long else None
    talks = [
        workers.submit(score_conversation, questions, precisions, seed=seed, max_tokens=extent.answer_tokens)
        for seed in range(extent.num_conversations)
    ]
    pending = [begin_text(workers, model, window, precisions) for window in windows]
    chunkings = [begin_chunking(workers, model, window) for window in windows[:_CHUNKING_WINDOWS]]
    scored = [_result(part, f"text: window {n + 1} of {len(pending)}", say) for n, part in enumerate(pending)]
    floor = join([_result(part, "text: BF16 in other chunks", say) for part in chunkings])
    long_scores = {} if long_pending is None else _result(long_pending, f"a context of {len(long)} tokens", say)
    turns = [_result(talk, f"conversation {n + 1} of {len(talks)}", say) for n, talk in enumerate(talks)]
    positions, by_position = _stretches(long_scores, len(long) - 1)
    by_turn = list(zip(*turns, strict=True))
    reference = join([scores[Precision.BF16] for scores in scored])
    return QualityResult(
        model=model.name,
        text=origin,
        dtype=str(model.decoder.embedding.weight.dtype).removeprefix("torch."),
        num_tokens=reference.num_positions,
        window=extent.window,
        chunk=BUDGET,
        bf16_perplexity=reference.perplexity,
        scores=tuple(_score(p, join([scores[p] for scores in scored]), reference) for p in precisions),
        chunking_kld=floor.mean_kld,
        positions=positions,
        by_position=by_position,
        num_conversations=extent.num_conversations,
        turn_tokens=tuple(round(fmean(turn.num_tokens for turn in same)) for same in by_turn),
        turn_hits=tuple(round(fmean(turn.num_cached for turn in same)) for same in by_turn),
        by_turn=tuple(_turn_curve(precision, by_turn) for precision in precisions) if turns else (),
        seconds=round(time.monotonic() - began, 1),
    )


def _result(pending: Callable[[], T], what: str, say: Say) -> T:
    found = pending()
    say(f"{what}: done")
    return found


def _cut(model: Model, text: str, extent: Extent) -> tuple[list[list[int]], list[int]]:
    """Windows of the text, each with the token after it, and the beginning of the text as one long context."""
    token_ids = model.tokenizer.encode(text, add_special_tokens=False)
    limit = model.decoder.config.context_len
    if max(extent.window + 1, extent.long_context) > limit:
        raise CommandError(f"--window and --long-context: the model's context has {limit} tokens; use fewer")
    count = -(-extent.num_tokens // extent.window)
    needed = max(count * extent.window + 1, extent.long_context)
    if len(token_ids) < needed:
        raise CommandError(f"--text has {len(token_ids)} tokens and {needed} are needed: lower --tokens, or give more")
    starts = range(0, count * extent.window, extent.window)
    return [token_ids[start : start + extent.window + 1] for start in starts], token_ids[: extent.long_context]


def _score(precision: Precision, scores: Scores, reference: Scores) -> TextScore:
    return TextScore(
        precision=precision,
        kld=scores.mean_kld,
        kld_p99=float(np.quantile(scores.kld, 0.99)),
        perplexity=scores.perplexity,
        perplexity_change=scores.perplexity / reference.perplexity - 1,
        agreement=scores.agreement,
    )


def _stretches(scores: Mapping[Precision, Scores], num_positions: int) -> tuple[tuple[int, ...], tuple[Curve, ...]]:
    """Where each stretch of the long context ends, and the mean KLD in it."""
    size = max(1, -(-num_positions // STRETCHES))
    starts = range(0, num_positions, size) if scores else ()
    curves = [
        Curve(precision=precision, kld=tuple(found.part(start, start + size).mean_kld for start in starts))
        for precision, found in scores.items()
        if precision is not Precision.BF16
    ]
    return tuple(min(start + size, num_positions) for start in starts), tuple(curves)


def _turn_curve(precision: Precision, by_turn: Sequence[Sequence[TurnScore]]) -> Curve:
    """Mean KLD over the answers' tokens of each turn, over all conversations."""
    same = [join([turn.scores[precision] for turn in turns]) for turns in by_turn]
    return Curve(precision=precision, kld=tuple(scores.mean_kld for scores in same))

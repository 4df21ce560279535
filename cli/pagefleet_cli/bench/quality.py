"""Measures what each KV precision costs in quality, against BF16 KV, through the engine's paged path."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_cli.bench.conversation import hold_conversations
from pagefleet_cli.bench.divergence import Scores, join
from pagefleet_cli.bench.forced import BUDGET, score_chunking, score_text, score_turns
from pagefleet_cli.bench.models import Model
from pagefleet_cli.bench.results import Curve, QualityResult, TextScore
from pagefleet_cli.errors import CommandError
from pagefleet_engine.contract.precision import Precision

STRETCHES: Final = 16
"""Parts of the long context whose means are reported."""
_CHUNKING_WINDOWS: Final = 2
Say = Callable[[str], None]


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
    text: str,
    origin: str,
    precisions: Sequence[Precision],
    extent: Extent,
    *,
    questions: Sequence[str],
    say: Say,
) -> QualityResult:
    """All three parts, one after the other. Raises `CommandError` for a text that is too short."""
    began = time.monotonic()
    windows, long = _cut(model, text, extent)
    scored: list[dict[Precision, Scores]] = []
    for number, window in enumerate(windows):
        say(f"text: window {number + 1} of {len(windows)}")
        scored.append(score_text(model, window, (Precision.BF16, *precisions)))
    say("text: BF16 in other chunks")
    floor = join([score_chunking(model, window) for window in windows[:_CHUNKING_WINDOWS]])
    say(f"one context of {len(long)} tokens")
    positions, by_position = _long(model, long, precisions)
    turns = _turns(model, precisions, extent, questions, say)
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
        turn_tokens=turns.tokens,
        turn_hits=turns.hits,
        by_turn=turns.curves,
        seconds=round(time.monotonic() - began, 1),
    )


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
        kld_p99=float(scores.kld.quantile(0.99)),
        perplexity=scores.perplexity,
        perplexity_change=scores.perplexity / reference.perplexity - 1,
        agreement=scores.agreement,
    )


def _long(
    model: Model, token_ids: Sequence[int], precisions: Sequence[Precision]
) -> tuple[tuple[int, ...], tuple[Curve, ...]]:
    """Mean KLD of each stretch, and where the stretches end."""
    if not token_ids:
        return (), ()
    scores = score_text(model, token_ids, precisions)
    size = -(-(len(token_ids) - 1) // STRETCHES)
    starts = range(0, len(token_ids) - 1, size)
    curves = [
        Curve(precision=precision, kld=tuple(found.part(start, start + size).mean_kld for start in starts))
        for precision, found in scores.items()
    ]
    return tuple(min(start + size, len(token_ids) - 1) for start in starts), tuple(curves)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    tokens: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()
    curves: tuple[Curve, ...] = ()


def _turns(model: Model, precisions: Sequence[Precision], extent: Extent, questions: Sequence[str], say: Say) -> _Turns:
    """Mean KLD over the answers of each turn, over all conversations."""
    if not extent.num_conversations:
        return _Turns()
    say(f"{extent.num_conversations} conversations of {len(questions)} turns: BF16 answers")
    held = hold_conversations(model, questions, count=extent.num_conversations, max_tokens=extent.answer_tokens)
    by_turn: list[list[tuple[dict[Precision, Scores], int]]] = [[] for _ in questions]
    for number, conversation in enumerate(held):
        say(f"conversation {number + 1} of {len(held)}")
        for found, parts in zip(score_turns(model, conversation, precisions), by_turn, strict=True):
            parts.append(found)
    scores = [{p: join([found[p] for found, _ in parts]) for p in precisions} for parts in by_turn]
    lengths = [[len(turn.prompt) + len(turn.answer) for turn in turns] for turns in zip(*held, strict=True)]
    return _Turns(
        tokens=tuple(sum(found) // len(found) for found in lengths),
        hits=tuple(sum(hit for _, hit in parts) // len(parts) for parts in by_turn),
        curves=tuple(Curve(precision=p, kld=tuple(turn[p].mean_kld for turn in scores)) for p in precisions),
    )

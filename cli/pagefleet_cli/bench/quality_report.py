"""The result of `bench quality` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from pagefleet_cli.bench.results import TARGETS, Curve, QualityResult, TextScore
from pagefleet_cli.output import heading, lines, table

_VERDICTS = {None: "", True: "met", False: "missed"}


def print_quality(console: Console, result: QualityResult) -> None:
    """Text, long context and conversations."""
    heading(console, f"{result.model}, {result.dtype} activations, {result.num_tokens} tokens of {result.text}")
    columns = ("KV", "KLD, nat", "KLD p99", "perplexity", "change", "top-1 alike", "target", "")
    reference = ("bf16", "0", "0", f"{result.bf16_perplexity:.4f}", "", "100 %", "", "")
    table(console, columns, [reference, *(_text_row(score) for score in result.scores)])
    floor = f"BF16 KV against itself in chunks of {result.chunk // 4}: {result.chunking_kld:.2g} nat"
    lines(console, [f"{floor}; differences below that mean nothing."])
    if result.positions:
        heading(console, "KLD by position in one long context, nat")
        ends = [str(end) for end in result.positions]
        table(console, ("up to", *(c.precision for c in result.by_position)), _curve_rows([ends], result.by_position))
    if result.by_turn:
        heading(console, f"KLD by turn, {result.num_conversations} conversations, nat")
        turns = [str(number + 1) for number in range(len(result.turn_tokens))]
        before = [turns, [str(n) for n in result.turn_tokens], [str(n) for n in result.turn_hits]]
        names = ("turn", "context", "cached", *(curve.precision for curve in result.by_turn))
        table(console, names, _curve_rows(before, result.by_turn))
    lines(console, [f"{result.seconds:.0f} s"])


def _text_row(score: TextScore) -> tuple[str, ...]:
    return (
        score.precision,
        f"{score.kld:.5f}",
        f"{score.kld_p99:.4f}",
        f"{score.perplexity:.4f}",
        f"{score.perplexity_change:+.2%}",
        f"{score.agreement:.2%}",
        _target(score),
        _VERDICTS[score.meets_target],
    )


def _target(score: TextScore) -> str:
    target = TARGETS.get(score.precision)
    if target is None:
        return ""
    kld = None if target.kld is None else f"<= {target.kld} nat"
    change = None if target.perplexity_change is None else f"<= {target.perplexity_change:+.1%}"
    return ", ".join(part for part in (kld, change) if part)


def _curve_rows(before: Sequence[Sequence[str]], curves: Sequence[Curve]) -> Iterator[tuple[str, ...]]:
    columns = [*before, *([f"{value:.5f}" for value in curve.kld] for curve in curves)]
    return zip(*columns, strict=True)

"""The result of `bench engine` as tables and as JSON. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from pagefleet_cli.bench.modes import CONTIGUOUS, PAGED_BF16, PAGED_FP8, PAGED_INT4
from pagefleet_cli.output import heading, lines, table

if TYPE_CHECKING:
    from pagefleet_cli.bench.capacity import Holding
    from pagefleet_cli.bench.throughput import Served

TARGETS: Final[Mapping[str, float]] = {PAGED_FP8.name: 1.9, PAGED_INT4.name: 3.2}
"""Requests at once, as a multiple of paged BF16."""
MOST_WASTE: Final = 0.04
"""Share of the pool, in paged FP8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """One run of the measurement."""

    layout: str  # whose frames
    pool_bytes: int
    num_prompt: int
    num_answer: int
    max_model_len: int  # what `contiguous` reserves
    holding: tuple[Holding, ...]
    load: Mapping[str, float]  # of the real engine; empty when it did not run
    served: tuple[Served, ...]

    def ratio(self, mode: str, base: str) -> float:
        """Requests at once against another mode."""
        held = {one.mode: one.at_once for one in self.holding}
        return held[mode] / held[base]

    def verdicts(self) -> dict[str, bool]:
        """Each target, and whether it is met."""
        waste = {one.mode: one.waste for one in self.holding}[PAGED_FP8.name]
        met = {
            f"{mode} >= {least} x paged bf16": self.ratio(mode, PAGED_BF16.name) >= least
            for mode, least in TARGETS.items()
        }
        return met | {f"waste in {PAGED_FP8.name} < {MOST_WASTE:.0%}": waste < MOST_WASTE}

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self) | {"targets": self.verdicts()}


def print_engine(console: Console, result: EngineResult) -> None:
    """What the pool holds, and what the engine makes of it."""
    size = f"{result.num_prompt} + {result.num_answer} tokens"
    heading(console, f"Requests of {size} in {result.pool_bytes / 2**20:.0f} MiB ({result.layout}, scheduler alone)")
    columns = ("mode", "at once", "x contiguous", "x paged bf16", "pool used", "wasted")
    table(console, columns, [_held_row(one, result) for one in result.holding])
    lines(console, [f"contiguous reserves {result.max_model_len} tokens per request"])
    lines(console, [f"{target}: {'met' if met else 'missed'}" for target, met in result.verdicts().items()])
    if result.served:
        load = ", ".join(f"{name} {value:g}" for name, value in result.load.items())
        heading(console, f"The real engine under Poisson arrivals ({load})")
        names = ("mode", "tokens/s", "x", "tokens/CPU s", "x", "at once", "first token, s", "preemptions")
        table(console, names, served_rows(result.served))


def _held_row(one: Holding, result: EngineResult) -> tuple[str, ...]:
    ratios = (f"{result.ratio(one.mode, base.name):.2f}" for base in (CONTIGUOUS, PAGED_BF16))
    return (one.mode, f"{one.at_once:.1f}", *ratios, f"{one.usage:.1%}", f"{one.waste:.2%}")


def served_rows(served: Sequence[Served]) -> list[tuple[str, ...]]:
    """Speeds, each also as a multiple of the contiguous mode of the same round."""
    rows: list[tuple[str, ...]] = []
    base = served[0] if served else None
    for one in served:
        base = one if one.mode == CONTIGUOUS.name or base is None else base
        wall, cpu = one.tokens_per_s / base.tokens_per_s, one.tokens_per_cpu_s / base.tokens_per_cpu_s
        speeds = (f"{one.tokens_per_s:.1f}", f"{wall:.2f}", f"{one.tokens_per_cpu_s:.1f}", f"{cpu:.2f}")
        rows.append((one.mode, *speeds, f"{one.at_once:.1f}", f"{one.first_token_s:.1f}", str(one.preemptions)))
    return rows

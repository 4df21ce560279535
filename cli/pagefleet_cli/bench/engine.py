"""Measures what the same pool bytes hold, and how fast the engine is with it, mode by mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from pagefleet_cli.bench.capacity import Sizes, measure_holding
from pagefleet_cli.bench.engine_report import EngineResult
from pagefleet_cli.bench.models import Model
from pagefleet_cli.bench.modes import MODES
from pagefleet_cli.bench.throughput import Load, Served, serve


def measure_engine(
    model: Model,
    sizes: Sizes,
    text: str,
    *,
    rounds: int,
    say: Callable[[str], None],
    steps: int = 4000,
    load: Load | None = None,
) -> EngineResult:
    """Capacity by simulation, then `rounds` rounds of the real engine with all modes in turn."""
    holding = []
    for mode in MODES:
        say(f"capacity: {mode.name}")
        holding.append(measure_holding(sizes, mode, steps=steps))
    load = load or Load()
    served: list[Served] = []
    token_ids = model.tokenizer.encode(text, add_special_tokens=False)
    for number in range(rounds):
        for mode in MODES:
            say(f"engine: {mode.name}, round {number + 1} of {rounds}")
            served.append(serve(model, token_ids, mode, load))
    return EngineResult(
        layout=model.name,
        pool_bytes=sizes.num_frames * sizes.layout.frame_bytes,
        num_prompt=sizes.num_prompt,
        num_answer=sizes.num_answer,
        max_model_len=sizes.max_model_len,
        holding=tuple(holding),
        load=asdict(load) if rounds else {},
        served=tuple(served),
    )

"""The statistics of the precision remedy by simulation: `python -m tests.operator.remedies.simulate_precision`.

Prints the tables of docs/precision-remedy.md. Every route has a seed of its own, made from --seed and its number, so
the numbers depend on neither the processes nor their order.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from pagefleet_operator.api.status import RouteState
from pagefleet_operator.remedies.precision.memory import Cause, Memory, Moment, enter
from tests.operator.remedies.precision_route import START, Rates, Run, same, simulate

WARM_UP = 1_000
"""Answers at the rate of before, ahead of a rise: the window is full of them."""
ATTEMPT = 20_000
LEVELS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.20)


def false_moves(seed: tuple[int, int], rate: float, cut: float, per_look: int) -> Run:
    """100,000 answers of both precisions alike."""
    return simulate(np.random.default_rng(seed), lambda _: same(rate, cut), answers=100_000, per_look=per_look)


def swinging(seed: tuple[int, int]) -> Run:
    """100,000 answers whose prompts are easy and hard by turns."""
    return simulate(np.random.default_rng(seed), lambda n: same(0.02 if n // 3_000 % 2 else 0.15), answers=100_000)


def rise(seed: tuple[int, int], before: Rates, after: Rates, per_look: int) -> Run:
    """A change after the warm-up."""
    rates: Callable[[int], Rates] = lambda n: before if n < WARM_UP else after  # noqa: E731 -- both are values here
    return simulate(np.random.default_rng(seed), rates, answers=WARM_UP + ATTEMPT, per_look=per_look)


def probing(seed: tuple[int, int], rates: Rates) -> Run:
    """From the end of the quiet period to whatever the probes lead to."""
    memory = enter(Memory(), RouteState.PROBING, Cause.QUIET_PERIOD_OVER, Moment(0.0, START))
    return simulate(
        np.random.default_rng(seed),
        lambda _: rates,
        answers=20_000,
        memory=memory,
        until=lambda run: run.memory.state is not RouteState.PROBING,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How much is simulated, and with what."""

    pool: ProcessPoolExecutor
    seed: int
    runs: int

    def of(self, number: int, scenario: Callable[[tuple[int, int]], Run], runs: int | None = None) -> list[Run]:
        """Independent routes of one scenario."""
        seeds = [(self.seed, number * 1_000_000 + run) for run in range(runs or self.runs)]
        return list(self.pool.map(scenario, seeds, chunksize=20))


def upper_bound(hits: int, trials: int) -> float:
    """The upper end of the 95 % interval of Clopper and Pearson, one-sided, by bisection."""
    low, high = hits / trials, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        tail = sum(
            math.exp(
                math.lgamma(trials + 1)
                - math.lgamma(k + 1)
                - math.lgamma(trials - k + 1)
                + k * math.log(middle)
                + (trials - k) * math.log1p(-middle)
            )
            for k in range(hits + 1)
        )
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def table_of_false_moves(bench: Bench) -> Iterator[str]:
    """Equal rates."""
    yield "| both precisions | routes | moved | 95 % upper bound | tests per route | requests in BF16 |"
    yield "|---|---|---|---|---|---|"
    cases = [(f"{rate:.0%} failures", partial(false_moves, rate=rate, cut=0.0, per_look=100)) for rate in LEVELS]
    cases += [
        ("5% failures, looks of 10", partial(false_moves, rate=0.05, cut=0.0, per_look=10)),
        ("5% failures, looks of 500", partial(false_moves, rate=0.05, cut=0.0, per_look=500)),
        ("2% failures, 20% truncated", partial(false_moves, rate=0.02, cut=0.2, per_look=100)),
        ("2% and 15% by turns of 3,000", swinging),
    ]
    for number, (name, scenario) in enumerate(cases):
        runs = bench.of(number, scenario)
        moved = sum(run.moved_at is not None for run in runs)
        tests = sum(run.tests for run in runs) / len(runs)
        share = sum(run.in_control for run in runs) / sum(run.answers for run in runs)
        bound = upper_bound(moved, len(runs))
        yield f"| {name} | {len(runs)} | {moved / len(runs):.2%} | {bound:.2%} | {tests:.2f} | {share:.1%} |"


def table_of_rises(bench: Bench) -> Iterator[str]:
    """What is found, and how soon."""
    yield "| before | after, FP8 / BF16 | look | within 1,500 | within 5,000 | within 20,000 | median |"
    yield "|---|---|---|---|---|---|---|"
    cases = [
        ("2%", f"{rate:.0%} / 2%", same(0.02), Rates(engine=rate, control=0.02), 50)
        for rate in (0.04, 0.05, 0.06, 0.07, 0.08, 0.10, 0.15)
    ]
    cases += [("2%", "8% / 2%", same(0.02), Rates(engine=0.08, control=0.02), size) for size in (10, 100, 200)]
    cases += [
        ("0%", "8% / 0%", same(0.0), Rates(engine=0.08), 50),
        ("2%", "8% / 8%", same(0.02), same(0.08), 50),
        ("2%", "20% / 20%", same(0.02), same(0.20), 50),
        ("10%", "20% / 10%", same(0.10), Rates(engine=0.20, control=0.10), 50),
        (
            "2%, 2% cut",
            "2%, 20% cut / 2%, 2% cut",
            same(0.02, 0.02),
            Rates(engine=0.02, control=0.02, engine_cut=0.20, control_cut=0.02),
            50,
        ),
        (
            "2%, 2% cut",
            "2%, 40% cut / 2%, 2% cut",
            same(0.02, 0.02),
            Rates(engine=0.02, control=0.02, engine_cut=0.40, control_cut=0.02),
            50,
        ),
        (
            "2%, 20% cut",
            "8%, 20% cut / 2%, 20% cut",
            same(0.02, 0.20),
            Rates(engine=0.08, control=0.02, engine_cut=0.20, control_cut=0.20),
            50,
        ),
        ("2%, 2% cut", "2%, 20% cut / 2%, 20% cut", same(0.02, 0.02), same(0.02, 0.20), 50),
    ]
    for number, (start, then, before, after, size) in enumerate(cases):
        runs = bench.of(100 + number, partial(rise, before=before, after=after, per_look=size), bench.runs // 2)
        yield f"| {start} | {then} | {size} | {_soon(runs)} |"


def _soon(runs: list[Run]) -> str:
    took = sorted(math.inf if run.moved_at is None else run.moved_at - WARM_UP for run in runs)
    shares = [sum(0 < answers <= limit for answers in took) / len(took) for limit in (1_500, 5_000, ATTEMPT)]
    median = took[len(took) // 2]
    return " | ".join(f"{share:.1%}" for share in shares) + f" | {'-' if math.isinf(median) else f'{median:,}'}"


def table_of_returns(bench: Bench) -> Iterator[str]:
    """What probing leads to."""
    yield "| FP8 / BF16 | back to FP8 | found worse | inconclusive | median answers |"
    yield "|---|---|---|---|---|"
    cases = [(0.0, 0.0), (0.01, 0.01), (0.02, 0.02), (0.10, 0.10), (0.05, 0.02), (0.08, 0.02), (0.15, 0.02)]
    for number, (engine, control) in enumerate(cases):
        rates = Rates(engine=engine, control=control)
        runs = bench.of(200 + number, partial(probing, rates=rates), bench.runs // 2)
        ends = [
            sum(run.memory.cause is cause for run in runs) / len(runs)
            for cause in (Cause.PROBE_CLEAN, Cause.PROBE_FAILED, Cause.PROBE_INCONCLUSIVE)
        ]
        median = sorted(run.answers for run in runs)[len(runs) // 2]
        yield f"| {engine:.0%} / {control:.0%} | " + " | ".join(f"{end:.1%}" for end in ends) + f" | {median:,} |"


TABLES: Final = {"false-moves": table_of_false_moves, "rises": table_of_rises, "probing": table_of_returns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="routes per row; half as many for rises and probing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=None, help="default: as many as there are cores")
    parser.add_argument("--only", choices=tuple(TABLES), help="one table; default: all")
    given = parser.parse_args()
    print(f"{given.runs} routes per row, seed {given.seed}, Python {platform.python_version()}, numpy {np.__version__}")
    with ProcessPoolExecutor(given.processes) as pool:
        bench = Bench(pool=pool, seed=given.seed, runs=given.runs)
        for title, table in TABLES.items():
            if given.only in (None, title):
                print(f"\n{title}\n", flush=True)
                for line in table(bench):
                    print(line, flush=True)


if __name__ == "__main__":
    main()

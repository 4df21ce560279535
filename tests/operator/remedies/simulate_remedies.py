"""Long simulations of tuning and scaling: `make simulate-remedies`. Prints what docs/remedies.md states.

Every history is six hours of one fleet under noisy load. Counted are changes of direction, the most of them in any
hour, per pod's cap, for the length of requests and for the replicas; a repeated setting after a restart is none.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from pagefleet_operator.remedies.reasons import RemedyReason
from tests.operator.remedies.simulator import Hardware, Load, Simulation, noisy

RATES = (0.6, 1.2, 2.0, 3.5, 6.0)
"""Requests per second: from half of one pod's capacity to more than four pods'."""
SMALL_POOL = Hardware(pool_tokens=6_000, tokens_per_s=500.0)
"""Fits about twelve requests, with caps that begin at 32."""
REPEATS = (RemedyReason.CAP_REAPPLIED, RemedyReason.LENGTH_REAPPLIED)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One history."""

    seed: int
    rate: float
    turns: int  # most in any hour
    decisions: int
    replicas: float  # mean


def simulate(seed: int, hours: float, rate: float | None = None) -> Result:
    """One history; the rate follows from the seed when it is not given."""
    rate = RATES[seed % len(RATES)] if rate is None else rate
    simulation = Simulation(load=Load(rate=noisy(rate, 0.2, seed)), hardware=SMALL_POOL, seed=seed)
    replicas: list[int] = []
    simulation.run(hours * 3600, check=lambda made: replicas.append(made.replicas))
    return Result(
        seed=seed,
        rate=rate,
        turns=most_turns(simulation.moments),
        decisions=len(simulation.moments),
        replicas=sum(replicas) / len(replicas),
    )


def most_turns(moments, within_s: float = 3600.0) -> int:
    """The most changes of direction of one value within any hour."""
    series: dict[object, list[tuple[float, bool]]] = {}
    for moment in moments:
        decision = moment.decision
        if decision.reason not in REPEATS:
            rises = int(decision.to) > int(decision.from_)
            series.setdefault((decision.remedy, decision.subject), []).append((moment.at_s, rises))
    return max((_most(list(_turns(steps)), within_s) for steps in series.values()), default=0)


def _turns(steps: list[tuple[float, bool]]) -> Iterator[float]:
    for (_, before), (at_s, rises) in pairwise(steps):
        if rises is not before:
            yield at_s


def _most(turns: list[float], within_s: float) -> int:
    return max((sum(start <= other < start + within_s for other in turns) for start in turns), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        results = list(pool.map(simulate, range(given.seeds), [given.hours] * given.seeds))
    print("| requests/s | histories | most turns in an hour: 0 / 1 / 2 / more | decisions an hour | replicas, mean |")
    print("|---|---|---|---|---|")
    for rate in RATES:
        chosen = [result for result in results if result.rate == rate]
        found = Counter(min(result.turns, 3) for result in chosen)
        turns = " / ".join(str(found[number]) for number in range(4))
        decisions = sum(result.decisions for result in chosen) / max(1, len(chosen)) / given.hours
        replicas = sum(result.replicas for result in chosen) / max(1, len(chosen))
        print(f"| {rate} | {len(chosen)} | {turns} | {decisions:.1f} | {replicas:.2f} |")
    worst = max(result.turns for result in results)
    print(f"most turns in any hour: {worst}")
    if worst > 2:
        raise SystemExit(f"seeds with more than 2: {[result.seed for result in results if result.turns > 2]}")


if __name__ == "__main__":
    main()

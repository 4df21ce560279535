"""A simulated route: answers drawn with numpy, judged by the decider that ships, look by look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.remedy_spec import KvPrecisionSpec, Mode
from pagefleet_operator.api.status import RouteState
from pagefleet_operator.control.pace import TESTED
from pagefleet_operator.remedies.precision.decide import advance, want
from pagefleet_operator.remedies.precision.limits import Limits, rest_after
from pagefleet_operator.remedies.precision.look import Enough, Look
from pagefleet_operator.remedies.precision.memory import Memory, Moment
from pagefleet_operator.remedies.precision.states import is_resting
from pagefleet_operator.remedies.settings import LoopSettings

ENGINE, FALLBACK = Precision.FP8_E4M3, Precision.BF16
PACE = LoopSettings()
START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = KvPrecisionSpec(policy=Mode.AUTO)
LIMITS = Limits.of(SPEC)
MOVED = (RouteState.FALLBACK, RouteState.LATCHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What answers of the two precisions are like."""

    engine: float = 0.0  # failures among answers that are not truncated
    control: float = 0.0
    engine_cut: float = 0.0  # truncations among all answers
    control_cut: float = 0.0


def same(rate: float, cut: float = 0.0) -> Rates:
    """Both precisions alike."""
    return Rates(engine=rate, control=rate, engine_cut=cut, control_cut=cut)


@dataclass(slots=True, kw_only=True)
class Run:
    """What became of one route."""

    memory: Memory
    moved_at: int | None = None  # answers until it left the engine's precision
    tests: int = 0
    answers: int = 0
    in_control: int = 0  # of them, those in the fallback precision


def look_at(counts: dict[tuple[str, str], int], seconds: float, control_share: float = 0.05) -> Look:
    """One look under the default spec."""
    return Look(
        route="tools",
        spec=SPEC,
        policy=Mode.AUTO,
        control_share=control_share,
        engine=ENGINE,
        counts=counts,
        room=Enough(),
        now=Moment(seconds, START),
    )


def simulate(
    rng: np.random.Generator,
    rates: Callable[[int], Rates],
    *,
    answers: int,
    per_look: int = 50,
    memory: Memory | None = None,
    until: Callable[[Run], bool] = lambda run: run.moved_at is not None,
) -> Run:
    """A route until `answers`, or until it is somewhere; `rates` by the number of answers so far.

    `per_look` of them fall between two looks at the usual pace, and fewer where the loop looks sooner.
    """
    run = Run(memory=memory or Memory())
    share = want(run.memory, look_at({}, 0.0)).control_share
    while run.answers < answers and not until(run):
        _rest(run, rng, share, per_look)
        new, now = _answers_in(per_look, run.memory), rates(run.answers)
        control = int(rng.binomial(new, share))
        counts = _draw(rng, ENGINE, new - control, now.engine, now.engine_cut)
        counts |= _draw(rng, FALLBACK, control, now.control, now.control_cut)
        run.answers += new
        run.in_control += control
        _advance(run, look_at(counts, run.answers / per_look * PACE.look_every_s))
        share = want(run.memory, look_at({}, 0.0)).control_share
    return run


def _answers_in(per_look: int, memory: Memory) -> int:
    """Answers in the next look, by the rule of `control.pace`."""
    if memory.state not in TESTED:
        return per_look
    soonest = round(per_look * PACE.shortest_look_s / PACE.look_every_s)
    return min(per_look, max(PACE.answers_per_look, soonest))


def _rest(run: Run, rng: np.random.Generator, share: float, per_look: int) -> None:
    """Skips what has no effect: answers of a resting route that its window has forgotten when it may test again."""
    if not is_resting(run.memory) or run.memory.since_test is None:
        return
    left = rest_after(run.memory.tests) - run.memory.since_test
    skipped = (left - 2 * LIMITS.window) // per_look * per_look
    if skipped > 0:
        run.memory = replace(run.memory, since_test=run.memory.since_test + skipped)
        run.answers += skipped
        run.in_control += int(rng.binomial(skipped, share))


def _advance(run: Run, look: Look) -> None:
    before = run.memory
    run.memory = advance(before, look, LIMITS)
    run.tests += run.memory.tests > before.tests
    if run.moved_at is None and run.memory.state in MOVED:
        run.moved_at = run.answers


def _draw(
    rng: np.random.Generator, precision: Precision, num: int, rate: float, cut: float
) -> dict[tuple[str, str], int]:
    truncated = int(rng.binomial(num, cut)) if cut else 0
    failed = int(rng.binomial(num - truncated, rate))
    return {
        (precision, "valid"): num - truncated - failed,
        (precision, "schema_violation"): failed,
        (precision, "truncated"): truncated,
    }

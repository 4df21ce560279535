"""Health by progress, in made-up time."""

from __future__ import annotations

import pytest

from pagefleet_engine.api import EngineStats
from pagefleet_engine.server.progress import Progress


def at(step: int, *, work: bool) -> EngineStats:
    return EngineStats(
        running=0,
        waiting=0,
        swapped=0,
        kv_usage=0.0,
        cpu_kv_usage=0.0,
        cap=1,
        capacity=1,
        max_model_len=16,
        step_counter=step,
        has_work=work,
    )


# sentence → (looks as (time, step, has work), seconds stalled at the last look)
CASES = {
    "an idle engine is healthy for ever": ([(0, 5, False), (10_000, 5, False)], None),
    "work that has only just come is no stall": ([(0, 5, False), (10_000, 5, False), (10_001, 5, True)], None),
    "steps keep it healthy however long the work lasts": ([(0, 1, True), (100, 2, True), (200, 3, True)], None),
    "exactly the budget is not over it": ([(0, 1, True), (120, 1, True)], None),
    "no step for longer than the budget is a stall": ([(0, 1, True), (121, 1, True)], 121),
    "a step after the stall heals it": ([(0, 1, True), (121, 1, True), (122, 2, True)], None),
}


@pytest.mark.parametrize(("looks", "want"), CASES.values(), ids=CASES.keys())
def test_stalled_for(looks, want):
    progress = Progress(budget_s=120, now=0)
    assert [progress.stalled_for(at(step, work=work), now=now) for now, step, work in looks][-1] == want

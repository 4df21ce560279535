"""`--batch-invariant` under KV pressure: every request equals its solo run, token for token and bit for bit.

40 requests in two turns, all precisions side by side, in a pool that is far too small for them: prefix hits, evictions,
swaps, recomputes and precision changes in mid-run. The run proves something only if all of that happened, so it counts.
"""

import pytest

from tests.engine.core.pressure import (
    NUM_FRAMES,
    PRECISIONS,
    Recorder,
    Turn,
    seen,
    small_core,
    solo,
    text_of,
    together,
)

NUM_REQUESTS = 40
AT_LEAST = 20


def first_turns():
    """Four opening texts shared by ten requests each, then a text of their own."""
    for index in range(NUM_REQUESTS):
        precision = PRECISIONS[index % 4]
        change = (9, PRECISIONS[(index + 1) % 4]) if index % 5 == 0 else None
        prompt = (*text_of(index % 4, 32), *text_of(100 + index, 3 + index % 7))
        yield Turn(name=f"r{index}", prompt=prompt, max_tokens=100 + index % 30, precision=precision, change=change)


def second_turn(turn, answer):
    """The dialogue goes on: what was said so far, and something new."""
    prompt = (*turn.prompt, *(token for token, _ in answer), *text_of(len(turn.prompt), 12))
    return Turn(name=turn.name + "-again", prompt=prompt, max_tokens=12, precision=turn.precision)


@pytest.fixture(scope="module")
def alone():
    """Answer of every turn, each run by itself."""
    answers = {turn.name: (turn, solo(turn)) for turn in first_turns()}
    again = [second_turn(turn, answer) for turn, answer in list(answers.values())[::3]]
    return answers | {turn.name: (turn, solo(turn)) for turn in again}


def solo_answers(alone):
    return {name: answer for name, (_, answer) in alone.items()}


@pytest.mark.parametrize("budget", [16, 48, 512])
def test_every_request_equals_its_solo_run_under_pressure(alone, budget, capsys):
    core = small_core(max_num_batched_tokens=budget, enable_prefix_caching=True)
    answers, last = together(alone, core)
    assert answers == solo_answers(alone)
    counts = seen(core, last)
    with capsys.disabled():
        print(f"\nbudget {budget}: {counts}")
    assert all(count >= AT_LEAST for count in counts.values()), counts
    stats = core.scheduler.stats()
    assert stats.frames["free"] + stats.frames["sealed"] == NUM_FRAMES


def test_without_a_prefix_cache_too(alone, capsys):
    num_frames = 34  # a little narrower, for as many recomputes; a slot more, for as many swaps
    core = small_core(max_num_batched_tokens=48, num_frames=num_frames, num_host_frames=7)
    answers, last = together(alone, core)
    assert answers == solo_answers(alone)
    counts = seen(core, last)
    with capsys.disabled():
        print(f"\nno prefix cache: {counts}")
    assert (counts["evictions"], counts["prefix hits"]) == (0, 0)
    assert min(counts["swaps"], counts["recomputes"]) >= AT_LEAST, counts
    assert core.scheduler.stats().frames["free"] == num_frames


def changing_turns():
    """Every request changes its precision in the middle of a group, some to a wider one and some to a tighter one.

    More than elsewhere: without second turns, 40 of them hit the cache fewer than 20 times.
    """
    for index in range(NUM_REQUESTS + 8):
        old, new = PRECISIONS[index % 4], PRECISIONS[(index + 1 + index // 4 % 3) % 4]
        prompt = (*text_of(index % 4, 32), *text_of(200 + index, 2 + index % 5))
        change = (4 + index % 9, new)
        yield Turn(name=f"c{index}", prompt=prompt, max_tokens=94 + index % 16, precision=old, change=change)


def test_a_change_of_precision_is_replayed(capsys):
    """Solo runs change at the same token. A recompute after the change has to seal each group as it was at first."""
    alone = {turn.name: (turn, solo(turn)) for turn in changing_turns()}
    recorder = Recorder({name: turn for name, (turn, _) in alone.items()})
    core = small_core(
        max_num_batched_tokens=48,
        enable_prefix_caching=True,
        num_frames=24,  # there are no second turns here, so the pool is narrower
        num_host_frames=5,
        executor_of=recorder,
    )
    answers, last = together(alone, core)
    assert answers == solo_answers(alone)
    counts = seen(core, last) | {
        "changes": sum(output.mixed for output in last.values()),
        "recomputes of a changed request": len(recorder.replays),
    }
    with capsys.disabled():
        print(f"\nprecision changes: {counts}")
    assert all(count >= AT_LEAST for count in counts.values()), counts

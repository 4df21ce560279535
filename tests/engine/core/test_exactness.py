"""`--batch-invariant` under KV pressure: every request equals its solo run, token for token and bit for bit.

40 requests in two turns, all precisions side by side, in a pool that is far too small for them: prefix hits, evictions,
swaps, recomputes and precision changes in mid-run. The run proves something only if all of that happened, so it counts.
Answers are lists of (token, its log probability): a single bit of difference in a logit would show.
"""

from dataclasses import dataclass

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.testing import tiny_core, tiny_decoder

DECODER = tiny_decoder(seed=5, dtype=torch.bfloat16)
PRECISIONS = (Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4)
NUM_REQUESTS = 40
NUM_FRAMES, NUM_HOST_FRAMES = 40, 6
BLOCK = 8
AT_LEAST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one request asks, and whether its precision changes after some tokens of the answer."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    precision: Precision
    change: tuple[int, Precision] | None = None


def text_of(seed, length):
    return [(seed * 97 + 7 * i * i + 3 * i) % 256 for i in range(length)]


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


def add(core, turn):
    sampling = SamplingParams(temperature=0.0, max_tokens=turn.max_tokens, ignore_eos=True, logprobs=0)
    core.add(Request(request_id=turn.name, prompt_token_ids=turn.prompt, sampling=sampling, precision=turn.precision))


def step(core, turns, answers, last):
    """One step; precision changes happen when an answer has reached the length that its turn names."""
    for name, output in core.step():
        answers.setdefault(name, []).extend((entry.token_id, entry.logprob) for entry in output.logprobs)
        last[name] = output
        change = turns[name].change
        if output.finish_reason is None and change is not None and len(answers[name]) == change[0]:
            core.scheduler.set_precision(name, change[1])


def solo(turn):
    core = tiny_core(
        decoder=DECODER, dtype=torch.bfloat16, batch_invariant=True, block_size=BLOCK, max_num_batched_tokens=512
    )
    add(core, turn)
    answers = {}
    while core.has_work:
        step(core, {turn.name: turn}, answers, {})
    return answers[turn.name]


@pytest.fixture(scope="module")
def alone():
    """Answer of every turn, each run by itself."""
    answers = {turn.name: (turn, solo(turn)) for turn in first_turns()}
    again = [second_turn(turn, answer) for turn, answer in list(answers.values())[::3]]
    return answers | {turn.name: (turn, solo(turn)) for turn in again}


def together(alone, core):
    """All of them through one core; a second turn comes as soon as the first has ended."""
    turns = {name: turn for name, (turn, _) in alone.items()}
    waiting = [name for name in turns if not name.endswith("-again")]
    answers, last, begun = {}, {}, set()
    while waiting or core.has_work:
        for name in waiting[:2]:
            add(core, turns[name])
            waiting.remove(name)
            begun.add(name)
        step(core, turns, answers, last)
        core.scheduler.check_invariants()
        ended = {name for name in begun if len(answers.get(name, ())) == turns[name].max_tokens}
        waiting += [again for name in sorted(ended) if (again := f"{name}-again") in turns]
        begun -= ended
    return answers, last


def small_core(**kwargs):
    return tiny_core(
        decoder=DECODER,
        dtype=torch.bfloat16,
        batch_invariant=True,
        block_size=BLOCK,
        num_frames=NUM_FRAMES,
        num_host_frames=NUM_HOST_FRAMES,
        max_num_seqs=16,
        max_num_queued=100,
        **kwargs,
    )


@pytest.mark.parametrize("budget", [16, 48, 512])
def test_every_request_equals_its_solo_run_under_pressure(alone, budget, capsys):
    core = small_core(max_num_batched_tokens=budget, enable_prefix_caching=True)
    answers, last = together(alone, core)
    assert answers == {name: answer for name, (_, answer) in alone.items()}
    stats = core.scheduler.stats()
    seen = {
        "swaps": stats.counters.swaps,
        "recomputes": stats.counters.recomputes,
        "evictions": stats.memory.evicted + stats.memory.evicted_to_host,
        "prefix hits": sum(1 for output in last.values() if output.num_cached_tokens),
    }
    with capsys.disabled():
        print(f"\nbudget {budget}: {seen}")
    assert all(count >= AT_LEAST for count in seen.values()), seen
    assert stats.frames["free"] + stats.frames["sealed"] == NUM_FRAMES


def test_without_a_prefix_cache_too(alone):
    core = small_core(max_num_batched_tokens=48)
    assert together(alone, core)[0] == {name: answer for name, (_, answer) in alone.items()}
    assert core.scheduler.stats().counters.preemptions >= AT_LEAST

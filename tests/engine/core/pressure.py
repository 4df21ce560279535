"""Many requests through a pool that is far too small for them, and each of them alone, for tests of exactness.

Answers are lists of (token, its log probability): a single bit of difference in a logit would show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.testing import tiny_core, tiny_decoder

DECODER = tiny_decoder(seed=5, dtype=torch.bfloat16)
PRECISIONS = (Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4)
NUM_FRAMES, NUM_HOST_FRAMES = 40, 6
BLOCK = 8


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


def small_core(**changes):
    settings = {
        "decoder": DECODER,
        "dtype": torch.bfloat16,
        "batch_invariant": True,
        "block_size": BLOCK,
        "num_frames": NUM_FRAMES,
        "num_host_frames": NUM_HOST_FRAMES,
        "max_num_seqs": 16,
        "max_num_queued": 100,
    }
    return tiny_core(**settings | changes)


def seen(core, last):
    """What the pool's narrowness led to: a run without any of it would prove nothing."""
    stats = core.scheduler.stats()
    return {
        "swaps": stats.counters.swaps,
        "recomputes": stats.counters.recomputes,
        "evictions": stats.memory.evicted,
        "prefix hits": sum(1 for output in last.values() if output.num_cached_tokens),
    }


class Recorder:
    """Makes an executor that notes who goes back to compute KV again after their precision has changed."""

    def __init__(self, turns):
        self.turns = turns
        self.replays = []
        self._reached = {}

    def __call__(self, runner):
        recorder = self

        class Recording(LocalExecutor):
            def execute(self, output):
                recorder.look(output)
                return super().execute(output)

        return Recording(runner)

    def look(self, output):
        for request in output.requests:
            name, change = request.request_id, self.turns[request.request_id].change
            num_answered = request.num_known - request.num_prompt_tokens
            if request.start < self._reached.get(name, 0) and change is not None and num_answered > change[0]:
                self.replays.append((output.step, name))
            self._reached[name] = request.start

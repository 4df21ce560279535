"""Log probabilities of prompt tokens when prompts are interrupted: swaps and recomputes change no bit of them.

Every position is scored exactly once. The run proves something only if prompts were interrupted, so it counts that.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pagefleet_engine.request import Request, RequestState, SamplingParams
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.scheduling.pressure import Pressure
from pagefleet_engine.testing import naive_sealed_logits, sealed_groups, tiny_core, tiny_decoder
from tests.engine.core.pressure import PRECISIONS, text_of

DECODER = tiny_decoder(seed=5)
NUM_REQUESTS = 12


def requests():
    """Two opening texts shared by half of them each, then a text of their own; each in one of the precisions."""
    for index in range(NUM_REQUESTS):
        prompt = (*text_of(index % 2, 32), *text_of(100 + index, 70 + 9 * (index % 7)))
        sampling = SamplingParams(temperature=0.0, max_tokens=index % 4, ignore_eos=True, logprobs=0, prompt_logprobs=2)
        precision = PRECISIONS[index // 2 % 4]
        yield Request(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling, precision=precision)


class Watching(LocalExecutor):
    """Notes which rows were scored, and who computes part of an unfinished prompt again."""

    def __init__(self, runner):
        super().__init__(runner)
        self.scored = {}
        self.replayed = Counter()
        self._reached = {}

    def execute(self, output):
        for request in output.requests:
            name, reached = request.request_id, self._reached.get(request.request_id, 0)
            self.replayed[name] += request.start < reached < request.num_prompt_tokens
            self._reached[name] = request.start + len(request.token_ids)
            self.scored.setdefault(name, []).extend(request.prompt_rows)
        return super().execute(output)


def make_core(**changes):
    settings = {"decoder": DECODER, "raw_dtype": torch.bfloat16, "batch_invariant": True, "executor_of": Watching}
    return tiny_core(**settings | changes)


def run(core, waiting, interrupt=lambda _: None):
    """(prompt's scores, answer's log probabilities) by name."""
    prompts, answers = {}, {}
    waiting = list(waiting)
    while waiting or core.has_work:
        for request in waiting[:6]:
            core.add(request)
        del waiting[:6]
        interrupt(core.scheduler)
        for name, output in core.step():
            if output.prompt_logprobs is not None:
                assert name not in prompts
                prompts[name] = list(output.prompt_logprobs.entries())
            answers.setdefault(name, []).extend(output.logprobs)
        core.scheduler.check_invariants()
    return prompts, answers


class Interruptions:
    """Before a step, the last of several that run has to leave in the middle of its prompt; three times each."""

    def __init__(self):
        self.by_state = Counter()
        self._by_name = Counter()

    def __call__(self, scheduler):
        running = scheduler._books.running
        scheduler.set_cap(scheduler.config.max_num_seqs)
        victim = running[len(running) - 1] if len(running) > 1 else None
        if victim is None or self._by_name[victim.request_id] == 3:
            return
        if not 0 < victim.num_computed < victim.num_prompt_tokens - 1:
            return
        pressure = Pressure(
            scheduler._books, scheduler.memory, scheduler._counters, step=0, protected_steps=0, may_demote=False
        )
        pressure.make_free(scheduler.memory.num_available + 1, len(running) - 2, spare_protected=False)
        self.by_state[victim.state] += 1
        self._by_name[victim.request_id] += 1
        scheduler.set_cap(len(running))  # nobody comes back in the step in which somebody has left


@pytest.fixture(scope="module")
def alone():
    prompts, answers = {}, {}
    for request in requests():
        found = run(make_core(max_num_batched_tokens=512), [request])
        prompts |= found[0]
        answers |= found[1]
    return prompts, answers


def test_alone_they_are_those_of_a_forward_pass_over_sealed_groups(alone):
    prompts, _ = alone
    for request in list(requests())[:8]:
        prompt = request.prompt_token_ids
        groups = sealed_groups(request.precision, len(prompt))
        logprobs = naive_sealed_logits(DECODER, prompt, groups).log_softmax(-1)
        want = [float(row[token]) for row, token in zip(logprobs, prompt[1:], strict=False)]
        assert [entry.logprob for entry in prompts[request.request_id]] == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize("num_host_frames", [0, 40], ids=["recomputed", "swapped"])
@pytest.mark.parametrize(("budget", "at_least"), [(16, 5), (48, 5), (512, 2)])
def test_every_prompt_is_scored_once_and_as_alone(alone, budget, at_least, num_host_frames, capsys):
    core = make_core(
        max_num_batched_tokens=budget,
        max_num_seqs=12,
        num_frames=80,
        num_host_frames=num_host_frames,
        enable_prefix_caching=True,
    )
    interruptions = Interruptions()
    assert run(core, requests(), interruptions) == alone
    executor = core._executor
    assert executor.scored == {r.request_id: list(range(r.num_prompt_tokens - 1)) for r in requests()}
    counts = dict(interruptions.by_state) | {"computed again": executor.replayed.total()}
    with capsys.disabled():
        print(f"\nbudget {budget}: {counts}")
    if num_host_frames:
        assert counts[RequestState.SWAPPED] >= at_least
    else:
        assert counts[RequestState.WAITING] >= at_least
        assert counts["computed again"] >= at_least
        if budget > 16:  # there, what was cached has been evicted when its owner comes back
            assert core.stats().prefix_hit_tokens_total > 0, "what was scored already may come from the cache"

"""The step loop over the real scheduler and a tiny random model in fp32, against recomputing everything."""

import math

import pytest
import torch

from pagefleet_engine.errors import QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason, Request, SamplingParams
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.testing import naive_greedy, tiny_core, tiny_decoder

DECODER = tiny_decoder()
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def prompt_of(seed, length):
    return [(seed * 31 + 7 * i * i + 3 * i) % 256 for i in range(length)]


def request(request_id, length=20, sampling=GREEDY, **kwargs):
    prompt = prompt_of(sum(map(ord, request_id)), length)
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, **kwargs)


def run(core, until=lambda core: not core.has_work):
    """Step to the end; tokens and last output by request. Invariants hold after every step."""
    tokens, last = {}, {}
    while not until(core):
        for request_id, output in core.step():
            tokens.setdefault(request_id, []).extend(output.token_ids)
            last[request_id] = output
        core.scheduler.check_invariants()
    return tokens, last


def naive(request):
    return naive_greedy(DECODER, request.prompt_token_ids, request.sampling.max_tokens)


@pytest.mark.parametrize("budget", [16, 48, 512])
def test_requests_of_many_lengths_together_answer_as_if_each_were_alone(budget):
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=budget)
    requests = [request(name, length) for name, length in (("a", 1), ("b", 15), ("c", 16), ("d", 17), ("e", 70))]
    for added in requests:
        core.add(added)
    tokens, last = run(core)
    assert tokens == {r.request_id: naive(r) for r in requests}
    assert {output.finish_reason for output in last.values()} == {FinishReason.LENGTH}


def test_requests_that_come_while_others_run_change_nothing_for_them():
    core = tiny_core(decoder=DECODER)
    requests = [request(name, 30) for name in "abcdef"]
    tokens = {}
    waiting = list(requests)
    while waiting or core.has_work:
        if waiting:
            core.add(waiting.pop(0))
        for request_id, output in core.step():
            tokens.setdefault(request_id, []).extend(output.token_ids)
    assert tokens == {r.request_id: naive(r) for r in requests}


def test_a_pool_too_small_for_all_preempts_and_every_answer_stays_the_same():
    core = tiny_core(decoder=DECODER, num_frames=8)
    requests = [request(name, 14, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)) for name in "abcd"]
    for added in requests:
        core.add(added)
    tokens, _ = run(core)
    assert tokens == {r.request_id: naive(r) for r in requests}
    assert core.stats().preemptions_total > 0


def test_swapped_frames_come_back_with_the_same_content():
    core = tiny_core(decoder=DECODER, num_frames=8, num_host_frames=32)
    requests = [request(name, 14, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)) for name in "abcd"]
    for added in requests:
        core.add(added)
    tokens, _ = run(core)
    assert tokens == {r.request_id: naive(r) for r in requests}
    assert core.scheduler.stats().counters.resumes > 0


def test_a_shared_prefix_is_read_from_the_cache_and_answers_the_same():
    core = tiny_core(decoder=DECODER, enable_prefix_caching=True)
    first = request("a", 50)
    again = Request(request_id="b", prompt_token_ids=first.prompt_token_ids, sampling=GREEDY)
    core.add(first)
    tokens, _ = run(core)
    core.add(again)
    more, last = run(core)
    assert more["b"] == tokens["a"] == naive(first)
    assert last["b"].num_cached_tokens == 48


def test_hits_of_both_tiers_are_told_together_and_those_of_host_memory_once_more():
    core = tiny_core(decoder=DECODER, num_frames=8, num_host_frames=8, enable_prefix_caching=True)
    prompt, others = prompt_of(1, 50), [7] * 100
    told = []
    for name, ids in (("first", prompt), ("warm", prompt), ("displaces it", others), ("cold", prompt)):
        core.add(Request(request_id=name, prompt_token_ids=ids, sampling=GREEDY))
        run(core)
        found = core.stats()
        told.append((found.prefix_hit_tokens_total, found.prefix_host_hit_tokens_total))
    assert told == [(0, 0), (48, 0), (48, 0), (96, 32)]  # one frame of three stayed in the pool


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["while it waits", "in its prompt", "while it decodes"])
def test_an_aborted_request_ends_at_once_and_leaves_nothing_behind(steps):
    core = tiny_core(decoder=DECODER, max_num_batched_tokens=24)
    gone, stays = request("gone", 30), request("stays", 20)
    core.add(gone)
    core.add(stays)
    tokens = {}
    for _ in range(steps):
        for request_id, output in core.step():
            tokens.setdefault(request_id, []).extend(output.token_ids)
    emission = core.abort("gone")
    assert emission.output.finish_reason is FinishReason.ABORT
    assert core.abort("gone") is None
    rest, _ = run(core)
    assert tokens.get("stays", []) + rest["stays"] == naive(stays)
    assert "gone" not in rest
    assert core.stats().frames["free"] == 32


def test_the_end_of_sequence_token_ends_an_answer_and_is_not_part_of_it():
    free = naive(request("a"))
    stop = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(free[5],), ignore_eos=True)
    core = tiny_core(decoder=DECODER)
    core.add(request("a", sampling=stop))
    tokens, last = run(core)
    assert tokens["a"] == free[: free.index(free[5])]
    assert last["a"].finish_reason is FinishReason.STOP


class PoisonedExecutor(LocalExecutor):
    """Spoils the keys of one request's first frame before the third step, as a fault in memory would."""

    def __init__(self, runner):
        super().__init__(runner)
        self.runner = runner

    def execute(self, output):
        if output.step == 3:
            victim = next(r for r in output.requests if r.request_id == "sick")
            self.runner.cache.pool[victim.writes[0].frames[0]] = 0xFF
        return super().execute(output)


def test_nan_ends_the_request_that_has_it_with_an_error_and_no_other():
    core = tiny_core(decoder=DECODER, executor_of=PoisonedExecutor)
    sick, well = request("sick", 10), request("well", 12)
    core.add(sick)
    core.add(well)
    tokens, last = run(core)
    assert last["sick"].finish_reason is FinishReason.ERROR
    assert "nan" in last["sick"].error
    assert tokens["well"] == naive(well)
    assert core.stats().failed_requests_total == 1
    assert core.stats().frames["free"] == 32


REFUSED = {
    "an empty prompt": ([], GREEDY, "empty"),
    "a token id beyond the logits": ([3, 260], GREEDY, "token id 260"),
    "a negative token id": ([3, -1], GREEDY, "token id -1"),
    "a biased token beyond the logits": ([3], SamplingParams(logit_bias={999: 1.0}), "999"),
    "more than the context": ([3] * 200, SamplingParams(max_tokens=100), "300"),
}


@pytest.mark.parametrize(("prompt", "sampling", "names"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_never_be_served_is_refused_with_its_number(prompt, sampling, names):
    core = tiny_core(decoder=DECODER)
    with pytest.raises(RequestRefused, match=names):
        core.add(Request(request_id="a", prompt_token_ids=prompt, sampling=sampling))
    assert not core.has_work


def test_a_full_queue_says_when_to_come_back():
    core = tiny_core(decoder=DECODER, max_num_queued=1)
    core.add(request("a"))
    with pytest.raises(QueueFull) as full:
        core.add(request("b"))
    assert full.value.retry_after_s >= 1.0


def test_a_queue_of_long_prompts_says_when_to_come_back():
    core = tiny_core(decoder=DECODER, max_num_queued_tokens=10)
    core.add(request("a"))
    with pytest.raises(QueueFull, match="tokens are waiting already, and 10 may wait: try again in") as full:
        core.add(request("b"))
    assert full.value.retry_after_s >= 1.0


def test_logprobs_belong_to_the_tokens_they_come_with():
    core = tiny_core(decoder=DECODER)
    core.add(request("a", sampling=SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, ignore_eos=True)))
    entries = [entry for emission in drain(core) for entry in emission.output.logprobs]
    assert [entry.token_id for entry in entries] == naive(request("a"))[:3]
    assert all(entry.top[0][0] == entry.token_id for entry in entries)
    assert all(-math.inf < entry.logprob <= 0 for entry in entries)


def drain(core):
    while core.has_work:
        yield from core.step()


def test_sampling_with_a_seed_does_not_depend_on_the_batch():
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=10, ignore_eos=True)
    alone = tiny_core(decoder=DECODER)
    alone.add(request("a", sampling=sampling))
    together = tiny_core(decoder=DECODER)
    for name in "bcad":
        together.add(request(name, sampling=sampling))
    assert run(together)[0]["a"] == run(alone)[0]["a"]


def test_the_poison_in_a_fresh_pool_is_nan():
    core = tiny_core(decoder=DECODER, executor_of=PoisonedExecutor)
    assert bool(torch.isnan(core._executor.runner.cache.pool.view(torch.float32)).all())

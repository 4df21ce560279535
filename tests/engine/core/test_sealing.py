"""Sealed precisions through the whole engine, against a loop that recomputes everything by the visibility rule.

The model computes in fp32 over BF16 frames, so that a token differs only where a value that it saw differs.
"""

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.testing import naive_greedy, naive_sealed_logits, tiny_core, tiny_decoder

DECODER = tiny_decoder(seed=3)


def prompt_of(seed, length):
    return [(seed * 31 + 7 * i * i + 3 * i) % 256 for i in range(length)]


def core_of(**kwargs):
    return tiny_core(decoder=DECODER, raw_dtype=torch.bfloat16, **kwargs)


def request(request_id, length, precision, max_tokens=40):
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    prompt = prompt_of(sum(map(ord, request_id)), length)
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, precision=precision)


def run(core):
    tokens = {}
    while core.has_work:
        for request_id, output in core.step():
            tokens.setdefault(request_id, []).extend(output.token_ids)
        core.scheduler.check_invariants()
    return tokens


def naive(request):
    return naive_greedy(DECODER, request.prompt_token_ids, request.sampling.max_tokens, request.precision)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("budget", [16, 48, 512])
def test_a_sealed_answer_does_not_depend_on_the_chunks(precision, budget):
    core = core_of(max_num_batched_tokens=budget)
    added = request("a", 90, precision, max_tokens=20)
    core.add(added)
    assert run(core)["a"] == naive(added)


def test_all_precisions_side_by_side_in_one_pool():
    core = core_of(num_frames=64)
    requests = [request(str(precision), 40, precision) for precision in Precision]
    for added in requests:
        core.add(added)
    assert run(core) == {r.request_id: naive(r) for r in requests}


@pytest.mark.parametrize("num_host_frames", [0, 64], ids=["recompute", "swap"])
def test_preempted_requests_resume_with_what_they_saw(num_host_frames):
    core = core_of(num_frames=11, num_host_frames=num_host_frames)
    precisions = (Precision.FP8_E4M3, Precision.INT8, Precision.BF16, Precision.INT4)
    requests = [request(str(precision), 30, precision, max_tokens=60) for precision in precisions]
    for added in requests:
        core.add(added)
    assert run(core) == {r.request_id: naive(r) for r in requests}
    counters = core.scheduler.stats().counters
    assert counters.preemptions > 0
    assert (counters.resumes > 0) == (num_host_frames > 0)


@pytest.mark.parametrize("precision", [Precision.FP8_E4M3, Precision.INT4])
def test_a_prefix_hit_gives_the_sealed_values(precision):
    core = core_of(enable_prefix_caching=True)
    first = request("a", 100, precision, max_tokens=10)
    core.add(first)
    tokens = run(core)["a"]
    core.add(
        Request(request_id="b", prompt_token_ids=first.prompt_token_ids, sampling=first.sampling, precision=precision)
    )
    assert run(core)["b"] == tokens == naive(first)
    assert core.scheduler.stats().memory.prefix_hit_tokens > 0


def test_a_precision_change_in_mid_run_acts_from_the_next_group():
    core = core_of()
    added = request("a", 40, Precision.FP8_E4M3)
    core.add(added)
    tokens = []
    while core.has_work:
        for _, output in core.step():
            tokens.extend(output.token_ids)
        if len(tokens) == 10:
            core.scheduler.set_precision("a", Precision.BF16)
    # Groups 0..31 and 32..63 had begun in FP8 when the change came, at token 50.
    groups = [(32, Precision.FP8_E4M3)] * 2 + [(16, Precision.BF16)] * 4
    known = list(added.prompt_token_ids)
    for _ in range(40):
        known.append(int(naive_sealed_logits(DECODER, known, groups)[-1].argmax()))
    assert tokens == known[40:]


def test_a_demoted_request_goes_on_with_fp8_frames():
    core = core_of(num_frames=8)
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    for name in "ab":
        core.add(
            Request(request_id=name, prompt_token_ids=prompt_of(ord(name), 20), sampling=sampling, allow_demotion=True)
        )
    tokens = run(core)
    assert [len(answer) for answer in tokens.values()] == [60, 60]
    assert core.scheduler.stats().memory.demoted > 0
    assert core.stats().failed_requests_total == 0


# Steps of 32 tokens, FP8 up to the first of these positions and BF16 from there → where two BF16 frames become one.
DEMOTIONS = {
    "the first two frames": (0, {32}),
    "every two frames as soon as they are sealed": (0, {32, 64, 96}),
    "two frames behind one that was sealed in fp8": (32, {64}),
    "nothing": (32, set()),
}


@pytest.mark.parametrize(("bf16_from", "demoted_at"), DEMOTIONS.values(), ids=DEMOTIONS.keys())
def test_demoted_frames_are_read_as_one_that_was_sealed_in_fp8(bf16_from, demoted_at):
    """What was computed before saw BF16 and what comes after sees FP8: equal only when nothing comes in between."""
    core = core_of(max_num_batched_tokens=32)
    added = request("a", 110, Precision.FP8_E4M3 if bf16_from else Precision.BF16, max_tokens=12)
    core.add(added)
    tokens = []
    while core.has_work:
        for _, output in core.step():
            tokens.extend(output.token_ids)
        if added.num_computed == bf16_from:
            core.scheduler.set_precision("a", Precision.BF16)
        if added.num_computed in demoted_at:
            assert core.scheduler.memory.try_demote(added)
            core.scheduler.check_invariants()
    fp8 = {0} if bf16_from else set()
    fp8 |= {position - 32 for position in demoted_at}
    groups = []
    for start in range(0, 128, 32):
        groups += [(32, Precision.FP8_E4M3)] if start in fp8 else [(16, Precision.BF16)] * 2
    known = list(added.prompt_token_ids)
    for _ in range(12):
        known.append(int(naive_sealed_logits(DECODER, known, groups)[-1].argmax()))
    assert tokens == known[110:]

"""Sampling with exact values: which token a given number picks, and what each parameter does to it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.memory.table import FrameTable
from pagefleet_engine.request import SamplingParams
from pagefleet_engine.runtime.batched_draw import draw_rows
from pagefleet_engine.runtime.random import uniform
from pagefleet_engine.runtime.sampler import (
    Sampler,
    apply_bias,
    apply_occurrence,
    apply_repetition,
    draw_token,
    token_logprobs,
)
from pagefleet_engine.scheduling.output import Context, ScheduledRequest

PROBABILITIES = torch.tensor([0.1, 0.4, 0.0, 0.2, 0.3])
LOGITS = PROBABILITIES.log()
SAMPLER = Sampler(seed=7, eos_token_ids=(1,))


def request(params, known=(3,), num_prompt=1, request_id="a"):
    return ScheduledRequest(
        request_id=request_id,
        token_ids=known[-1:],
        start=len(known) - 1,
        context=Context(FrameTable(), 0),
        writes=(),
        samples=True,
        sampling=params,
        known_token_ids=known,
        num_known=len(known),
        num_prompt_tokens=num_prompt,
    )


def sample(params, logits=LOGITS, **kwargs):
    return SAMPLER.sample(logits.unsqueeze(0), [request(params, **kwargs)])[0]


# Without a filter tokens stand in the order of their ids: 0 up to 0.1, 1 up to 0.5, 3 up to 0.7, 4 up to 1.
# With one they stand in falling order: 1 (0.4), 4 (0.3), 3 (0.2), 0 (0.1).
DRAWS = {
    "the whole distribution, first token": ({}, 0.05, 0),
    "the whole distribution, a token of probability zero is passed over": ({}, 0.51, 3),
    "the whole distribution, last token": ({}, 0.999999, 4),
    "top-k 2, lower end": ({"top_k": 2}, 0.0, 1),
    "top-k 2, above 4/7": ({"top_k": 2}, 0.58, 4),
    "top-k 1 leaves the best": ({"top_k": 1}, 0.99, 1),
    "top-k beyond the vocabulary changes nothing": ({"top_k": 99}, 0.95, 0),
    "top-p 0.65 keeps 1 and 4": ({"top_p": 0.65}, 0.99, 4),
    "top-p 0.75 keeps the token that crosses it": ({"top_p": 0.75}, 0.99, 3),
    "top-p that the best token alone reaches": ({"top_p": 0.1}, 0.99, 1),
    "min-p 0.6 keeps what has at least 0.24": ({"min_p": 0.6}, 0.99, 4),
    "min-p 1 keeps the best": ({"min_p": 1.0}, 0.99, 1),
    "top-p counts within what top-k left": ({"top_k": 2, "top_p": 0.5}, 0.99, 1),
    "top-p counts within what min-p left": ({"min_p": 0.7, "top_p": 0.55}, 0.99, 1),
    "top-p counts within what min-p and top-k left": ({"min_p": 0.2, "top_k": 3, "top_p": 0.75}, 0.99, 4),
}


def test_top_p_takes_its_share_of_what_min_p_leaves():
    logits, params = torch.tensor([0.5, 0.3, 0.1, 0.1]).log(), SamplingParams(min_p=0.5, top_p=0.6)
    for draw in (0.0, 0.5, 0.99):  # min-p leaves 0.5 and 0.3, and the first of them is more than 0.6 of their 0.8
        assert draw_token(logits, params, draw) == 0
        assert draw_rows(logits.expand(2, 4), [params, SamplingParams(top_p=0.6)], [draw] * 2)[0] == 0


@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_min_p_looks_beyond_its_first_candidates_when_more_pass(top_p):
    flat = torch.cat((torch.zeros(4000), torch.full((1000,), -9.0)))
    params, want = SamplingParams(min_p=0.5, top_p=top_p), int(4000 * top_p)
    kept = {draw_token(flat, params, (i + 0.5) / want) for i in range(want)}
    assert len(kept) == want
    assert max(kept) < 4000
    assert draw_rows(flat.unsqueeze(0), [params], [0.5]) == [None]


@pytest.mark.parametrize(("params", "draw", "want"), DRAWS.values(), ids=DRAWS.keys())
def test_which_token_a_number_picks(params, draw, want):
    assert draw_token(LOGITS, SamplingParams(**params), draw) == want


def test_top_p_looks_beyond_its_first_candidates_when_they_do_not_reach_it():
    flat = torch.zeros(5000)
    params = SamplingParams(top_p=0.9)
    kept = {draw_token(flat, params, (i + 0.5) / 4500) for i in range(4500)}
    assert len(kept) == 4500


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 2**32))
def test_a_token_of_probability_zero_is_never_drawn(draw, seed):
    logits = torch.randn(64, generator=torch.Generator().manual_seed(seed % 1000))
    logits[seed % 64] = -math.inf
    for params in ({}, {"top_k": 63}, {"top_p": 0.999}, {"min_p": 0.001}):
        assert draw_token(logits, SamplingParams(**params), draw) != seed % 64


def test_uniform_is_the_published_generator():
    # SplitMix64 seeded with 0 yields 0xE220A8397B1DCDAF first; the seed is mixed once more here, and 0 mixes to 0.
    assert uniform(0, 0) == (0xE220A8397B1DCDAF >> 11) / 2**53
    assert uniform(0, 1) == (0x6E789E6AA1B965F4 >> 11) / 2**53


def test_uniform_covers_the_interval_evenly_over_counters_and_seeds():
    for numbers in ([uniform(5, i) for i in range(10_000)], [uniform(i, 5) for i in range(10_000)]):
        counts = [sum(1 for n in numbers if k <= 10 * n < k + 1) for k in range(10)]
        assert all(900 < count < 1100 for count in counts)


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-38, 1e-6, 9.9e-6])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"min_p": 0.1}, {"presence_penalty": 0.1}])
def test_a_tiny_temperature_is_none(temperature, more):
    params = SamplingParams(temperature=temperature, **more)
    for is_batched in (False, True):
        sampler = replace(SAMPLER, in_batches=is_batched)
        assert sampler.sample(LOGITS.unsqueeze(0), [request(params)])[0].token_id == 1


def test_the_least_temperature_is_drawn_with():
    close = torch.tensor([0.0, 1e-6, -1.0])  # a tenth of the temperature apart: shares of 0.475 and 0.525
    params = [SamplingParams(temperature=1e-5, seed=seed) for seed in range(20)]
    assert {sample(one, logits=close).token_id for one in params} == {0, 1}


@pytest.mark.parametrize("is_batched", [False, True], ids=["row by row", "in batches"])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"presence_penalty": 0.1}])
def test_a_row_without_a_finite_softmax_fails_alone(more, is_batched):
    rows = torch.stack((torch.tensor([3e38, 1.0, 0.0, 0.0, 0.0]), LOGITS))
    asked = [request(SamplingParams(temperature=1e-4, **more), request_id=name) for name in "ab"]
    broken, fine = replace(SAMPLER, in_batches=is_batched).sample(rows, asked)
    assert (broken.token_id, broken.is_client_error) == (None, False)
    assert broken.error == "the logits, divided by the temperature, have no finite softmax"
    assert (fine.token_id, fine.error) == (1, None)


def test_greedy_takes_the_best_and_needs_no_number():
    assert sample(SamplingParams(temperature=0.0)).token_id == 1


def test_the_same_seed_and_place_give_the_same_token_in_any_batch():
    params = SamplingParams(seed=11)
    others = [request(SamplingParams(seed=i), request_id=str(i)) for i in range(5)]
    logits = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
    alone = SAMPLER.sample(logits[5:], [request(params)])[0].token_id
    assert SAMPLER.sample(logits, [*others, request(params)])[5].token_id == alone


def test_requests_without_a_seed_differ_but_repeat_under_their_id():
    logits = torch.zeros(1, 50_000)
    first, second, again = (SAMPLER.sample(logits, [request(SamplingParams(), request_id=i)])[0] for i in "aba")
    assert first.token_id == again.token_id != second.token_id


def test_each_place_of_the_answer_draws_another_number():
    logits = torch.zeros(1, 50_000)
    known = list(range(20))
    drawn = [
        SAMPLER.sample(logits, [request(SamplingParams(seed=1), known=known[: i + 1])])[0].token_id for i in range(20)
    ]
    assert len(set(drawn)) == 20


def test_end_tokens_cannot_come_before_the_minimum_length():
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(4,))
    assert [sample(params, known=(3,) * n).token_id for n in (1, 2, 3)] == [3, 3, 1]


def test_ignored_end_tokens_may_come_before_the_minimum_length():
    assert sample(SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True)).token_id == 1


def test_bias_is_added_to_its_token():
    logits = torch.zeros(4)
    apply_bias(logits, {1: 2.5, 3: -100.0})
    assert logits.tolist() == [0.0, 2.5, 0.0, -100.0]


def test_repetition_divides_positive_and_multiplies_negative_logits_once():
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0])
    apply_repetition(logits, [0, 1, 1, 0, 0], 2.0)
    assert logits.tolist() == [1.0, -4.0, 2.0, -2.0]


def test_presence_counts_once_and_frequency_every_time():
    logits = torch.zeros(4)
    apply_occurrence(logits, [2, 2, 2, 1], SamplingParams(presence_penalty=0.5, frequency_penalty=0.25))
    assert logits.tolist() == [0.0, -0.75, -1.25, 0.0]


def test_penalties_of_the_answer_do_not_count_the_prompt():
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    assert sample(params, known=(1, 1), num_prompt=2).token_id == 1
    assert sample(params, known=(3, 1), num_prompt=1).token_id == 4


def test_the_models_own_logits_are_left_alone():
    logits = LOGITS.clone().unsqueeze(0)
    params = SamplingParams(temperature=0.5, logit_bias={0: 5.0}, repetition_penalty=2.0, min_tokens=3)
    SAMPLER.sample(logits, [request(params)])
    assert torch.equal(logits[0], LOGITS)


def test_logprobs_are_those_of_the_model_before_temperature_and_bias():
    params = SamplingParams(temperature=0.0, logit_bias={0: 100.0}, logprobs=2)
    found = sample(params)
    assert found.token_id == 0
    assert found.logprobs.logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert [token for token, _ in found.logprobs.top] == [1, 4]


def test_logprobs_zero_reports_the_chosen_token_alone():
    entry = token_logprobs(LOGITS, 3, 0)
    assert (entry.token_id, entry.top) == (3, ())


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["NaN", "infinity"])
def test_a_row_with_a_broken_logit_fails_alone(bad):
    logits = torch.stack((LOGITS, LOGITS, LOGITS))
    logits[1, 2] = bad
    found = SAMPLER.sample(logits, [request(SamplingParams(temperature=0.0), request_id=i) for i in "abc"])
    assert [result.token_id for result in found] == [1, None, 1]
    assert found[1].error is not None


def test_a_row_without_any_finite_logit_fails():
    assert sample(SamplingParams(), logits=torch.full((5,), -math.inf)).token_id is None

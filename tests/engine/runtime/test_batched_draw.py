"""Rows drawn together get the tokens that they get one by one."""

from dataclasses import replace

import pytest
import torch

from pagefleet_engine.memory.table import FrameTable
from pagefleet_engine.request import SamplingParams
from pagefleet_engine.runtime.batched_draw import draw_rows
from pagefleet_engine.runtime.sampler import Sampler, draw_token
from pagefleet_engine.scheduling.output import Context, ScheduledRequest

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7, temperature=2.0),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.3, temperature=1.5),
    SamplingParams(min_p=0.2),
    SamplingParams(top_k=20, top_p=0.8, min_p=0.05),
    SamplingParams(top_k=5000, top_p=0.99),
    SamplingParams(min_p=0.3, top_p=0.6),
    SamplingParams(min_p=0.01, top_p=0.7, temperature=1.5),
]
LOGITS = 3.0 * torch.randn((len(PARAMS), 4000), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("draw", [0.0, 0.001, 0.25, 0.5, 0.77, 0.999, 1 - 2**-53])
def test_each_row_gets_the_token_that_it_gets_alone(draw):
    got = draw_rows(LOGITS, PARAMS, [draw] * len(PARAMS))
    assert got == [draw_token(row / p.temperature, p, draw) for row, p in zip(LOGITS, PARAMS, strict=True)]


def test_a_row_does_not_depend_on_its_neighbours():
    draws = [0.1 * index for index in range(len(PARAMS))]
    together = draw_rows(LOGITS, PARAMS, draws)
    assert together == [draw_rows(LOGITS[i : i + 1], [PARAMS[i]], [draws[i]])[0] for i in range(len(PARAMS))]


def test_a_distribution_too_flat_for_the_candidates_is_left_to_the_row_alone():
    rows = torch.stack((torch.zeros(4000), LOGITS[0]))
    got = draw_rows(rows, [SamplingParams(top_p=0.9)] * 2, [0.5, 0.5])
    assert got == [None, draw_token(LOGITS[0], SamplingParams(top_p=0.9), 0.5)]


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]]).expand(2, 4)
    params = [SamplingParams(), SamplingParams(top_p=0.999)]
    assert draw_rows(logits, params, [1 - 2**-53] * 2) == [2, 0]


def request(name, params):
    return ScheduledRequest(
        request_id=name,
        token_ids=(3,),
        start=4,
        context=Context(FrameTable(), 0),
        writes=(),
        samples=True,
        sampling=params,
        known_token_ids=(1, 2, 3, 3),
        num_known=4,
        num_prompt_tokens=2,
    )


def test_a_sampler_in_batches_gives_the_tokens_of_one_without():
    mixed = [
        *PARAMS,
        SamplingParams(temperature=0.0),
        SamplingParams(repetition_penalty=2.0),
        SamplingParams(top_p=0.9),
    ]
    rows = torch.cat((LOGITS, LOGITS[:2], torch.zeros((1, 4000))))
    rows[4, 7] = torch.nan
    requests = [request(f"r{index}", params) for index, params in enumerate(mixed)]
    alone = Sampler(seed=3, eos_token_ids=(1,))
    want = alone.sample(rows, requests)
    assert replace(alone, in_batches=True).sample(rows, requests) == want
    assert want[4].error == "the model's logits peak at nan"

import math

import pytest

from pagefleet_engine.request import Request, SamplingError, SamplingParams

OUT_OF_RANGE = {
    "temperature below 0": ({"temperature": -0.1}, "temperature is -0.1: must be 0 to 100"),
    "temperature that is no number": ({"temperature": math.nan}, "temperature is nan: must be 0 to 100"),
    "temperature without end": ({"temperature": math.inf}, "temperature is inf: must be 0 to 100"),
    "top_k of 0": ({"top_k": 0}, "top_k is 0: must be 1 to 2147483648"),
    "top_p above 1": ({"top_p": 1.1}, "top_p is 1.1: must be 0 to 1"),
    "top_p of 0": ({"top_p": 0.0}, "top_p 0 leaves no token to sample: use temperature 0 for the most likely one"),
    "min_p below 0": ({"min_p": -1}, "min_p is -1: must be 0 to 1"),
    "repetition_penalty of 0": ({"repetition_penalty": 0}, "repetition_penalty is 0: must be 0.01 to 100"),
    "presence_penalty above 2": ({"presence_penalty": 3}, "presence_penalty is 3: must be -2 to 2"),
    "frequency_penalty below -2": ({"frequency_penalty": -3}, "frequency_penalty is -3: must be -2 to 2"),
    "a bias above 100": ({"logit_bias": {5: 101}}, "logit_bias is 101: must be -100 to 100"),
    "a bias that is no number": ({"logit_bias": {5: math.nan}}, "logit_bias is nan: must be -100 to 100"),
    "less than no token": ({"max_tokens": -1}, "max_tokens is -1: must be 0 to 2147483648"),
    "prompt_logprobs below 0": ({"prompt_logprobs": -1}, "prompt_logprobs is -1: must be 0 to 1024"),
    "min above max": ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is above max_tokens 4"),
    "no choice": ({"n": 0}, "n is 0: must be 1 to 128"),
    "best of fewer": ({"n": 3, "best_of": 2}, "best_of 2 is below n 3"),
}


@pytest.mark.parametrize(("values", "message"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE.keys())
def test_sampling_refuses(values, message):
    with pytest.raises(SamplingError) as refused:
        SamplingParams(**values)
    assert str(refused.value) == message
    assert refused.value.param == message.split()[0]


def test_ids_outside_the_vocabulary_are_refused():
    SamplingParams(logit_bias={0: 1, 9: -1}, stop_token_ids=(9,)).check_vocabulary(10)
    with pytest.raises(SamplingError, match="logit_bias has token id 10: the model's ids are 0 to 9"):
        SamplingParams(logit_bias={10: 1}).check_vocabulary(10)
    with pytest.raises(SamplingError, match="stop_token_ids has token id -1"):
        SamplingParams(stop_token_ids=(-1,)).check_vocabulary(10)


def test_a_request_counts_its_tokens():
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3))
    request.token_ids.append(4)
    assert (request.num_prompt_tokens, request.num_tokens, request.num_output_tokens) == (3, 4, 1)
    assert (request.num_computed, request.num_uncomputed) == (0, 4)

"""Bodies field by field: one error is enough, however many values are wrong."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.schemas import CompletionBody, DetokenizeBody, parse_body

WRONG = {
    "texts in place of ids": (DetokenizeBody, {"tokens": [1, *["a"] * 1_000]}, "tokens: entry 1 should be a number"),
    "booleans": (DetokenizeBody, {"tokens": [True] * 1_000}, "tokens: entry 0 should be a number"),
    "fractions": (DetokenizeBody, {"tokens": [1, 2, *[0.5] * 1_000]}, "tokens: entry 2 should be an integer"),
    "nulls": (
        CompletionBody,
        {"prompt": "a", "stop_token_ids": [None] * 1_000},
        "stop_token_ids: entry 0 should be a number",
    ),
    "a bias that is a text": (
        CompletionBody,
        {"prompt": "a", "logit_bias": {str(i): "1" for i in range(1_000)}},
        "logit_bias: entry 0 should be a number",
    ),
}


@pytest.mark.parametrize(("kind", "value", "message"), WRONG.values(), ids=WRONG.keys())
def test_the_first_wrong_entry_is_named_and_the_others_are_not_collected(kind, value, message):
    with pytest.raises(ValidationError) as collected:
        kind.model_validate(value)
    assert collected.value.error_count() == 1
    with pytest.raises(ApiError) as caught:
        parse_body(kind, value)
    assert caught.value.body.message == message


def test_right_entries_pass():
    body = {"prompt": "a", "stop_token_ids": [1, 2], "logit_bias": {"1": 1, "2": -0.5}}
    parsed = parse_body(CompletionBody, body)
    assert (parsed.stop_token_ids, parsed.logit_bias) == ([1, 2], {"1": 1.0, "2": -0.5})

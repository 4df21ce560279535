"""`SamplingParams.structured_outputs` in the offline API: every kind, and every refusal as one line."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest

from pagefleet_engine import LLM, SamplingParams
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.request import FinishReason
from pagefleet_engine.testing import ByteTokenizer, tiny_core, tiny_decoder

DECODER = tiny_decoder()
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "y": {"enum": ["up", "down"]}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


@pytest.fixture
def llm():
    return LLM.over(tiny_core(decoder=DECODER), ByteTokenizer())


def asking(**form) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=3, max_tokens=100, structured_outputs=form)


def is_point(text: str) -> bool:
    return jsonschema.Draft202012Validator(POINT).is_valid(json.loads(text))


FITS = {
    "a schema": ({"json": POINT}, is_point),
    "a schema as text": ({"json": json.dumps(POINT)}, is_point),
    "a regular expression": ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]{2}", text)),
    "choices": ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    "a grammar": ({"grammar": 'start: "a" ("b" | "c") "d"\n'}, lambda text: text in ("abd", "acd")),
    "one that is set among others that are not": (
        {"regex": None, "choice": ["yes"], "json_object": False},
        lambda text: text == "yes",
    ),
}


@pytest.mark.parametrize(("form", "fits"), FITS.values(), ids=FITS.keys())
def test_an_answer_fits_what_was_asked_for(llm, form, fits):
    """Every choice of every prompt, though the model is random; the end comes where the form is complete."""
    found = llm.generate(["ab", "xyz"], replace(asking(**form), n=3))
    choices = [choice for one in found for choice in one.choices]
    assert [choice.text for choice in choices if not fits(choice.text)] == []
    assert {choice.finish_reason for choice in choices} == {FinishReason.STOP}


def test_any_object(llm):
    """A random model may go on for ever inside it."""
    [choice] = llm.generate("ab", asking(json_object=True))[0].choices
    assert choice.text.startswith("{")
    if choice.finish_reason is FinishReason.STOP:
        assert isinstance(json.loads(choice.text), dict)


def test_a_dialogue_too(llm):
    assert llm.chat([{"role": "user", "content": "x"}], asking(choice=["yes", "no"]))[0].text in ("yes", "no")


def test_without_a_form_an_answer_is_free(llm):
    free = SamplingParams(temperature=1.0, seed=3, max_tokens=100)
    texts = {llm.generate("ab", params)[0].text for params in (free, replace(free, structured_outputs=None))}
    assert len(texts) == 1
    assert texts.isdisjoint({"yes", "no"})


REFUSED = {
    "two at once": ({"regex": "a", "choice": ["b"]}, "structured_outputs", "structured_outputs: exactly one of json, "),
    "none": ({}, "structured_outputs", "structured_outputs: exactly one of json, "),
    "no mapping": ("json", "structured_outputs", "structured_outputs: must be an object with one of json, "),
    "an unknown kind": (
        {"xml": "a"},
        "structured_outputs.xml",
        "structured_outputs.xml is not supported by this engine",
    ),
    "a broken expression": ({"regex": "(a"}, "structured_outputs.regex", "structured_outputs.regex: "),
    "text that is no JSON": (
        {"json": "{"},
        "structured_outputs.json",
        "structured_outputs.json: is a string and no JSON",
    ),
    "no schema": ({"json": {"type": 5}}, "structured_outputs.json", "structured_outputs.json: $.type: 5 is not valid"),
    "a keyword that no mask can hold to": (
        {"json": {"type": "array", "uniqueItems": True}},
        "structured_outputs.json",
        "structured_outputs.json: ",
    ),
    "a schema that refers to the net": (
        {"json": {"$ref": "https://x"}},
        "structured_outputs.json",
        "structured_outputs.json: $ref 'https://x' leads out",
    ),
    "no choices": ({"choice": []}, "structured_outputs.choice", "structured_outputs.choice: must be a list of strings"),
    "a broken grammar": ({"grammar": "start: x\n"}, "structured_outputs.grammar", "structured_outputs.grammar: "),
}


@pytest.mark.parametrize(("form", "param", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_form_that_is_refused_says_why_in_one_line_and_leaves_nothing_behind(llm, form, param, message):
    with pytest.raises(RequestRefused) as refusal:
        llm.generate(["ab", "c"], SamplingParams(structured_outputs=form))
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)
    assert refusal.value.param == param
    assert not llm._core.has_work
    assert llm.generate("ab", asking(choice=["yes"]))[0].text == "yes"


class Endless(ByteTokenizer):
    """A model without an end of sequence."""

    eos_token_ids = ()


def test_a_model_without_an_end_says_so():
    llm = LLM.over(tiny_core(decoder=DECODER), Endless())
    with pytest.raises(
        RequestRefused, match=r"structured_outputs\.choice: structured output is not served: this model has"
    ):
        llm.generate("a", asking(choice=["yes"]))

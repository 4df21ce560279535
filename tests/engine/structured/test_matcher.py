"""Masks in the sampler, with the real scheduler, the real matcher and a tiny random model."""

from __future__ import annotations

import json

import pytest
import torch

from pagefleet_engine.core import EngineCore
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.request import FinishReason, Request, SamplingParams
from pagefleet_engine.runtime.ranks import RanksExecutor
from pagefleet_engine.runtime.sampler import mask_penalties
from pagefleet_engine.structured.compiling import build_vocabulary, compile_spec
from pagefleet_engine.structured.constraint import ConstraintFailed
from pagefleet_engine.structured.matcher import GrammarMatcher
from pagefleet_engine.structured.spec import Kind, Spec, choice_spec, schema_spec
from pagefleet_engine.testing import ByteTokenizer, tiny_core, tiny_runner

VOCABULARY = build_vocabulary(ByteTokenizer())
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
EOS = 257


def constraint(spec: Spec) -> GrammarMatcher:
    return GrammarMatcher(compile_spec(VOCABULARY, spec))


def regex(pattern: str) -> Spec:
    return Spec(kind=Kind.REGEX, text=pattern)


def request(name: str, spec: Spec | None, *, prompt: str = "Name a city: ", **sampling) -> Request:
    settings = {"temperature": 0.0, "max_tokens": 100} | sampling
    return Request(
        request_id=name,
        prompt_token_ids=ByteTokenizer().encode(prompt),
        sampling=SamplingParams(**settings),
        constraint=None if spec is None else constraint(spec),
    )


class Answer:
    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list = []
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.is_client_error = False

    @property
    def text(self) -> str:
        return bytes(token for token in self.token_ids if token < 256).decode(errors="replace")


def run(core: EngineCore, *requests: Request) -> dict[str, Answer]:
    answers = {one.request_id: Answer() for one in requests}
    for one in requests:
        core.add(one)
    while core.has_work:
        for name, output in core.step():
            answer = answers[name]
            answer.token_ids += output.token_ids
            answer.logprobs += output.logprobs or ()
            answer.finish_reason, answer.error = output.finish_reason, output.error
            answer.is_client_error = output.is_client_error
    return answers


def alone(spec: Spec | None, **sampling) -> Answer:
    return run(tiny_core(), request("a", spec, **sampling))["a"]


ANSWERS = {
    "a schema": (schema_spec(CITY), {}),
    "one of several texts": (choice_spec(["north", 'so"uth', "we\nst"]), {}),
    "a regular expression": (regex("[ab]{3}-[0-9]{2}"), {}),
    "a grammar": (Spec(kind=Kind.GRAMMAR, text='start: "x" start "y" | "z"'), {"temperature": 1.0, "max_tokens": 200}),
    "sampled with a temperature": (schema_spec(CITY), {"temperature": 1.5, "seed": 3}),
    "sampled among few": (schema_spec(CITY), {"temperature": 1.0, "top_k": 2, "top_p": 0.9}),
}


@pytest.mark.parametrize(("spec", "sampling"), ANSWERS.values(), ids=ANSWERS.keys())
def test_what_is_asked_for_comes_out_and_the_request_ends_there(spec, sampling):
    answer = alone(spec, **sampling)
    check = constraint(spec)
    for token in answer.token_ids:
        check.mask(())
        is_complete = check.accept(token)
    assert is_complete
    assert answer.finish_reason is FinishReason.STOP
    if spec == schema_spec(CITY):
        value = json.loads(answer.text)
        assert value["city"] in ("Paris", "Rome")
        assert 0 <= value["size"] <= 99


def test_without_a_constraint_the_same_model_says_something_else():
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(alone(None).text)


def test_nothing_is_generated_after_the_last_token_of_a_grammar():
    core = tiny_core()
    answer = run(core, request("a", regex("abc")))["a"]
    assert (answer.text, answer.finish_reason) == ("abc", FinishReason.STOP)
    assert core.stats().step_counter == 3


EDGES = {
    "the end of sequence may come only where the grammar is satisfied": (
        "a{20}",
        {"logit_bias": {EOS: 100.0}},
        "a" * 20,
        FinishReason.STOP,
    ),
    "and ends the answer where it may come": ("a{3,20}", {"logit_bias": {EOS: 100.0}}, "aaa", FinishReason.STOP),
    "min_tokens holds the end back": ("a{3,20}", {"logit_bias": {EOS: 100.0}, "min_tokens": 7}, "a" * 7, "stop"),
    "min_tokens cannot go past a complete grammar": ("a{3}", {"min_tokens": 50}, "aaa", FinishReason.STOP),
    "ignore_eos goes on while the grammar can": (
        "a{3,9}",
        {"logit_bias": {EOS: 100.0}, "ignore_eos": True},
        "a" * 9,
        FinishReason.STOP,
    ),
    "max_tokens cuts": ("a{20}", {"max_tokens": 4}, "aaaa", FinishReason.LENGTH),
    "complete with the last token that max_tokens allows": (
        "a{4}",
        {"max_tokens": 4},
        "aaaa",
        "stop",
    ),
    "a stop token of the client's ends it anywhere": ("a{4}", {"stop_token_ids": (97,)}, "", FinishReason.STOP),
    "nothing at all": ("", {}, "", FinishReason.STOP),
    "nothing at all, for somebody who wants more": ("", {"min_tokens": 4, "ignore_eos": True}, "", FinishReason.STOP),
    "a bias against every allowed token is only a bias": ("a{2}", {"logit_bias": {97: -100.0}}, "aa", "stop"),
}


@pytest.mark.parametrize(("pattern", "sampling", "text", "reason"), EDGES.values(), ids=EDGES.keys())
def test_ends(pattern, sampling, text, reason):
    answer = alone(regex(pattern), **sampling)
    assert (answer.text, answer.finish_reason, answer.error) == (text, reason, None)
    assert EOS not in answer.token_ids


def test_log_probabilities_are_those_of_the_model_itself():
    first = alone(None, logprobs=260, max_tokens=1).logprobs[0]
    forced = alone(regex("zz"), logprobs=2, max_tokens=1).logprobs[0]
    assert forced.token_id == ord("z")
    assert forced.logprob == pytest.approx(dict(first.top)[ord("z")])
    assert forced.top == first.top[:2]


PRESSURE = {
    "recompute": {"num_frames": 14},
    "swap": {"num_frames": 14, "num_host_frames": 32},
    "batch-invariant, with swap": {"num_frames": 14, "num_host_frames": 32, "batch_invariant": True},
}


@pytest.mark.parametrize("settings", PRESSURE.values(), ids=PRESSURE.keys())
def test_preempted_requests_go_on_where_they_were(settings):
    specs = [regex("[a-m]{60}"), schema_spec({"type": "array", "items": CITY, "minItems": 2}), regex("(xy|z){40,50}")]
    names = [f"{index}" for index in range(6)]

    def requests() -> list[Request]:
        return [request(name, specs[int(name) % 3], prompt=f"prompt {name} " * 3) for name in names]

    solo = {one.request_id: run(tiny_core(), one)[one.request_id].token_ids for one in requests()}
    core = tiny_core(**settings)
    crowded = run(core, *requests())
    assert core.stats().preemptions_total > 0
    assert {name: answer.token_ids for name, answer in crowded.items()} == solo


def test_an_impossible_constraint_ends_its_own_request_only():
    class Nothing:
        def mask(self, answer):
            return bytes(36)

        def accept(self, token_id):
            raise AssertionError("no token can be sampled")

    wrong, right = request("wrong", None), request("right", regex("abc"))
    wrong.constraint = Nothing()
    answers = run(tiny_core(), wrong, right)
    assert answers["wrong"].finish_reason is FinishReason.ERROR
    assert answers["wrong"].is_client_error
    assert answers["wrong"].error == "the constraint leaves no token that this model could say"
    assert answers["right"].text == "abc"


def test_the_state_follows_from_the_answer_alone():
    """Tokens that somebody else has chosen are taken in once, whoever asks how often."""
    matcher = constraint(regex("abcd"))
    assert matcher.mask([ord("a")]) == matcher.mask([ord("a")])
    assert matcher.accept(ord("b")) is False
    assert bits(matcher.mask([ord(letter) for letter in "ab"])) == [ord("c")]
    assert bits(matcher.mask([ord(letter) for letter in "abc"])) == [ord("d")]
    assert matcher.accept(ord("d")) is True


def bits(mask: bytes) -> list[int]:
    return [index for index in range(260) if mask[index // 8] >> index % 8 & 1]


def test_with_several_ranks_the_first_one_samples_and_keeps_the_matchers():
    core = tiny_core(executor_of=lambda _runner: RanksExecutor(tiny_runner, 2))
    try:
        answers = run(core, request("a", schema_spec(CITY)), request("b", regex("[0-9]{5}")))
    finally:
        core.close()
    assert json.loads(answers["a"].text)["city"] in ("Paris", "Rome")
    assert answers["b"].text.isdigit()


REFUSED = {
    "a regular expression that is none": (regex("(a"), "unclosed group"),
    "a grammar without a rule": (Spec(kind=Kind.GRAMMAR, text="start: foo"), 'unknown name: "foo"'),
    "a schema that refers to itself alone": (schema_spec({"$ref": "#"}), "nothing can fit it"),
    "CVE-2025-48944: a broken pattern in a schema": (
        schema_spec({"type": "string", "pattern": "(("}),
        "unclosed group",
    ),
    "CVE-2025-48943: a wrong type": (schema_spec({"type": "strin"}), "Invalid type: strin"),
    "a keyword that cannot be held to": (schema_spec({"uniqueItems": True}), 'Unimplemented keys: ["uniqueItems"]'),
    "a client's own compiler options": (
        schema_spec({"not": {}, "x-guidance": {"lenient": True}}),
        "Unimplemented keys",
    ),
}


@pytest.mark.parametrize(("spec", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_compile_is_refused_with_the_reason(spec, message):
    with pytest.raises(RequestRefused) as refusal:
        compile_spec(VOCABULARY, spec)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


COSTLY = {
    "CVE-2026-55574: nested repetition": ("(a+)+b", True),
    "large counts inside large counts": ("(a{1000}){1000}", False),
    "an automaton that doubles with each letter": ("(a|b)*a(a|b){200}", True),
}


@pytest.mark.parametrize(("pattern", "can_be_followed"), COSTLY.values(), ids=COSTLY.keys())
def test_costly_patterns_are_bounded_by_the_library(pattern, can_be_followed):
    matcher = constraint(regex(pattern))
    if can_be_followed:
        assert ord("a") in bits(matcher.mask([ord("a")] * 50))
    else:
        with pytest.raises(ConstraintFailed, match="too many expressions"):
            matcher.mask([ord("a")] * 50)


def test_a_model_without_an_end_of_sequence_serves_no_structure():
    class Endless(ByteTokenizer):
        eos_token_ids = ()

    with pytest.raises(RequestRefused, match="no end-of-sequence token"):
        build_vocabulary(Endless())


def test_what_a_mask_adds_to_the_logits():
    penalties = mask_penalties(bytes([0b101, 0, 1, 0xFF]), torch.zeros(17, dtype=torch.bfloat16))
    assert penalties.dtype is torch.bfloat16
    assert (penalties == 0).nonzero().flatten().tolist() == [0, 2, 16]
    assert int((penalties == float("-inf")).sum()) == 14
    assert mask_penalties(b"\x01", torch.zeros(10)).tolist() == [0.0] + [float("-inf")] * 9

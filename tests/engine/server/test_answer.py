"""One answer from tokens to text: halves of characters, stop strings, minimum length, log probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_engine.api import TokenLogprobs, TokenOutput
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import FinishReason, SamplingParams
from pagefleet_engine.server.answer import Answer
from pagefleet_engine.server.job import Choice
from pagefleet_engine.server.routes import RoutePick
from pagefleet_engine.testing import ByteTokenizer

EMPTY = TokenOutput(token_ids=(), finish_reason=None, num_prompt_tokens=1, num_cached_tokens=0)


def outputs(text: bytes, end: FinishReason = FinishReason.STOP) -> list[TokenOutput]:
    """One output per byte, then the end."""
    return [*(replace(EMPTY, token_ids=(byte,)) for byte in text), replace(EMPTY, finish_reason=end)]


def answer(**sampling) -> Answer:
    pick = RoutePick(route="default", precision=Precision.BF16)
    choice = Choice(index=0, prompt_ids=(1,), sampling=SamplingParams(**sampling), pick=pick, leader=0)
    return Answer(choice, ByteTokenizer().detokenizer(), include_stop=False)


CASES = {
    "a character of three bytes comes whole": ({}, "a€".encode(), ["a", "", "", "€", ""], "stop", None),
    "half a character at the end becomes U+FFFD": ({}, "€".encode()[:2], ["", "", "\ufffd"], "stop", None),
    "a stop string ends it": ({"stop": ("lo",)}, b"hello", ["h", "e", "", "l", ""], "stop", "lo"),
    "a stop string before min_tokens is text": ({"stop": ("l",), "min_tokens": 4}, b"hello", list("hel"), "stop", "l"),
    "what was held back comes at the end": ({"stop": ("low",)}, b"hello", ["h", "e", "", "l", "", "lo"], "stop", None),
}


@pytest.mark.parametrize(("sampling", "text", "want", "reason", "matched"), CASES.values(), ids=CASES.keys())
def test_text(sampling, text, want, reason, matched):
    watched, deltas = answer(**sampling), []
    for output in outputs(text):
        deltas.append(watched.add(output))
        if deltas[-1].finish_reason:
            break
    assert [delta.text for delta in deltas][: len(want)] == want
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (reason, matched)


def test_log_probabilities_wait_for_their_text():
    watched = answer(logprobs=0)
    entries = [TokenLogprobs(token_id=byte, logprob=-1.0) for byte in "€".encode()]
    got = [watched.add(replace(EMPTY, token_ids=(e.token_id,), logprobs=(e,))) for e in entries]
    assert [delta.logprobs for delta in got] == [(), (), tuple(entries)]

"""Tool calls in texts: the same whatever pieces the text comes in."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from pagefleet_engine.server.tool_parser import ToolCallParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parse(pieces, max_calls=8):
    """Text and calls of an answer; pieces of a call put together as a client does."""
    numbers = itertools.count()
    parser = ToolCallParser(max_calls=max_calls, new_id=lambda: f"id{next(numbers)}")
    text, calls = "", []
    for parsed in [*(parser.push(piece) for piece in pieces), parser.flush()]:
        text += parsed.text
        for piece in parsed.calls:
            if piece.id is not None:
                assert piece.index == len(calls)
                calls.append([piece.id, piece.name, ""])
            calls[piece.index][2] += piece.arguments
    return text, [tuple(call) for call in calls]


ANSWERS = {
    "plain text": ("Hello.\n", "Hello.\n", []),
    "one call": (CALL, "", [("f", '{"a": 1}')]),
    "text before it": ("Let me look.\n" + CALL, "Let me look.", [("f", '{"a": 1}')]),
    "text after it": (CALL + "\nDone.", "\nDone.", [("f", '{"a": 1}')]),
    "two calls": (CALL + "\n" + CALL.replace("1", "2"), "", [("f", '{"a": 1}'), ("f", '{"a": 2}')]),
    "on one line": ('<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
    "parameters, as Llama says": ('<tool_call>{"name":"f","parameters":{}}</tool_call>', "", [("f", "{}")]),
    "arguments first": ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    "brackets and ends inside strings": (
        '<tool_call>{"name": "f", "arguments": {"a": "}</tool_call>\\"]"}}</tool_call>',
        "",
        [("f", '{"a": "}</tool_call>\\"]"}')],
    ),
    "nested arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": [{"b": {}}]}}</tool_call>',
        "",
        [("f", '{"a": [{"b": {}}]}')],
    ),
    "a name with quotes": (
        '<tool_call>{"name": "f\\"g", "arguments": {}}</tool_call>',
        "",
        [('f"g', "{}")],
    ),
    "no end tag": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "cut in its arguments": ('<tool_call>{"name": "f", "arguments": {"a": "Par', "", [("f", '{"a": "Par')]),
    "cut in its name": ('<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
    "cut in the tag": ("a <tool_c", "a <tool_c", []),
    "no JSON inside": ("<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    "arguments that are a text": (
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        [],
    ),
    "arguments that are no JSON": ('<tool_call>{"name": "f", "arguments": {a}}</tool_call>', "", [("f", "{a}")]),
    "code": ("__import__('os').system('true')", "__import__('os').system('true')", []),
}


@pytest.mark.parametrize(("answer", "text", "calls"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers(answer, text, calls):
    want = (text, [(f"id{index}", *call) for index, call in enumerate(calls)])
    assert parse([answer]) == want
    assert parse(answer) == want, "letter by letter"
    rng = random.Random(0)
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(answer) + 1), k=3))
        assert parse([answer[a:b] for a, b in itertools.pairwise([0, *cuts, len(answer)])]) == want


def test_calls_beyond_the_allowed_number_are_dropped():
    assert parse([CALL + CALL], max_calls=1) == ("", [("id0", "f", '{"a": 1}')])


def test_arguments_arrive_as_they_come():
    parser = ToolCallParser(max_calls=1, new_id=lambda: "x")
    seen = [parser.push(piece).calls for piece in ('<tool_call>{"name": "f", ', '"arguments": {"a"', ": 1", "}}")]
    assert [[(piece.name, piece.arguments) for piece in calls] for calls in seen] == [
        [],
        [("f", ""), (None, '{"a"')],
        [(None, ": 1")],
        [(None, "}")],
    ]


def test_a_long_text_that_never_becomes_a_call():
    junk = '<tool_call>{"name": "' + '\\"' * 20_000
    text, calls = parse([junk[i : i + 64] for i in range(0, len(junk), 64)])
    assert (text, calls) == (junk, [])
    assert json.dumps(text)

"""Tool calls in texts, in each form: the same whatever pieces the text comes in."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagefleet_engine.server.tool_parser import ToolForm
from pagefleet_engine.server.tool_parser_hermes import HermesForm
from pagefleet_engine.server.tool_parser_llama3 import Llama3Form
from pagefleet_engine.server.tool_parser_mistral import MistralForm

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
FORMS: dict[str, ToolForm] = {form.name: form for form in (HermesForm(), Llama3Form(), MistralForm())}


def parse(pieces, max_calls=8, form="hermes"):
    """Text and calls of an answer; pieces of a call put together as a client does."""
    numbers = itertools.count()
    parser = FORMS[form].parser(max_calls=max_calls, new_id=lambda: f"id{next(numbers)}")
    text, calls = "", []
    for parsed in [*(parser.push(piece) for piece in pieces), parser.flush()]:
        text += parsed.text
        for piece in parsed.calls:
            if piece.id is not None:
                assert piece.index == len(calls)
                calls.append([piece.id, piece.name, ""])
            else:
                assert piece.index == len(calls) - 1
                assert piece.arguments
            calls[piece.index][2] += piece.arguments
    assert parser.num_calls == len(calls)
    return text, [tuple(call) for call in calls]


HERMES = {
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
    "a tag inside the junk after a tag": ("<tool_call>" + CALL, "<tool_call>", [("f", '{"a": 1}')]),
    "a call after one that is broken": (
        '<tool_call>{"name": </tool_call>' + CALL,
        '<tool_call>{"name": </tool_call>',
        [("f", '{"a": 1}')],
    ),
    "an end of a tag inside a name": (
        '<tool_call>{"name": "a</tool_call>", "arguments": {}}',
        '<tool_call>{"name": "a</tool_call>", "arguments": {}}',
        [],
    ),
    "a long argument cut off": (
        '<tool_call>{"name": "f", "arguments": {"a": "' + 2_000 * "x",
        "",
        [("f", '{"a": "' + 2_000 * "x")],
    ),
    "white space at the end of what is no call": ("<tool_call> \n", "<tool_call> \n", []),
}

WEATHER = '{"name": "get_current_conditions", "parameters": {"location": "San Francisco, CA", "unit": "Fahrenheit"}}'
TIME = '{"name": "get_time", "parameters": {}}'
WEATHER_CALL = ("get_current_conditions", '{"location": "San Francisco, CA", "unit": "Fahrenheit"}')
LLAMA3 = {
    "one call": (WEATHER, "", [WEATHER_CALL]),
    "after the tag": (f"<|python_tag|>{WEATHER}", "", [WEATHER_CALL]),
    "white space around it": (f"\n\n {WEATHER} \n", "", [WEATHER_CALL]),
    "two calls": (f"{WEATHER}; {TIME}", "", [WEATHER_CALL, ("get_time", "{}")]),
    "two calls, closer": (f"<|python_tag|>{TIME};{TIME}", "", [("get_time", "{}"), ("get_time", "{}")]),
    "two calls on two lines": (f"{TIME}\n{TIME}", "", [("get_time", "{}"), ("get_time", "{}")]),
    "a tag before each": (f"<|python_tag|>{TIME}<|python_tag|>{TIME}", "", [("get_time", "{}"), ("get_time", "{}")]),
    "a separator at the end": (f"{TIME}; ", "", [("get_time", "{}")]),
    "arguments, as others say": (
        '{"name": "f", "arguments": {"a": [1, {"b": 2}]}}',
        "",
        [("f", '{"a": [1, {"b": 2}]}')],
    ),
    "a type first": ('{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "parameters first": ('{"parameters": {"a": 1}, "name": "f"}', "", [("f", '{"a": 1}')]),
    "another field last": (
        '{"name": "f", "parameters": {"a": 1}, "strict": {"b": "}"}}; ' + TIME,
        "",
        [("f", '{"a": 1}'), ("get_time", "{}")],
    ),
    "separators and brackets inside strings": (
        '{"name": "f", "parameters": {"a": "}; {\\"name\\""}}',
        "",
        [("f", '{"a": "}; {\\"name\\""}')],
    ),
    "text before a tag": (f"Let me look. <|python_tag|>{TIME}", "Let me look.", [("get_time", "{}")]),
    "text after a call": (f"{TIME} Done.", " Done.", [("get_time", "{}")]),
    "a separator and a text after a call": (f"{TIME}; Done.", "; Done.", [("get_time", "{}")]),
    "an object that is no call after a call": (f'{TIME}; {{"a": 1}}', '; {"a": 1}', [("get_time", "{}")]),
    "cut in its arguments": (WEATHER[:70], "", [("get_current_conditions", WEATHER[WEATHER.index('{"location') : 70])]),
    "cut in its name": ('{"name": "get_cur', '{"name": "get_cur', []),
    "cut in the tag": ("<|python", "<|python", []),
    "cut after the tag": ("<|python_tag|> ", "<|python_tag|> ", []),
    "a text": ("It is 18 degrees.\n", "It is 18 degrees.\n", []),
    "nothing but white space": (" \n", " \n", []),
    "a call inside a text": (f"I would call {TIME}", f"I would call {TIME}", []),
    "JSON of another kind": ('{"city": "Paris", "parameters": {}}', '{"city": "Paris", "parameters": {}}', []),
    "JSON that begins like a call": ('{"name": "Bob", "age": {"a": 1}} ok', '{"name": "Bob", "age": {"a": 1}} ok', []),
    "a list of calls": (f"[{TIME}]", f"[{TIME}]", []),
    "no JSON": ("{name: f}", "{name: f}", []),
    "an object that is empty": ("{}", "{}", []),
    "code after the tag": ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "parameters that are a text": ('{"name": "f", "parameters": "{}"}', '{"name": "f", "parameters": "{}"}', []),
    "a very long first key": ('{"' + "k" * 500 + '": 1}', '{"' + "k" * 500 + '": 1}', []),
}
ADD = '{"name": "add", "arguments": {"a": 3.5, "b": 4}}'
ADD_CALL = ("add", '{"a": 3.5, "b": 4}')
MISTRAL = {
    "a list of one": (f"[TOOL_CALLS][{ADD}]", "", [ADD_CALL]),
    "a list after a space": (f"[TOOL_CALLS] [{ADD}]\n", "", [ADD_CALL]),
    "a list of two": (f"[TOOL_CALLS][{ADD}, {ADD}]", "", [ADD_CALL, ADD_CALL]),
    "a list on lines of its own": (f"[TOOL_CALLS][\n  {ADD},\n  {ADD}\n]", "", [ADD_CALL, ADD_CALL]),
    "ids in the list": (
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "9Ae3bDc2F"}, '
        '{"id": "x", "arguments": {}, "name": "g"}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "a name": ('[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}', "", [ADD_CALL]),
    "two names": (
        '[TOOL_CALLS]add[ARGS]{"a": 3.5, "b": 4}[TOOL_CALLS]get_weather[ARGS]{"city": "São Paulo"}',
        "",
        [ADD_CALL, ("get_weather", '{"city": "São Paulo"}')],
    ),
    "a name with an id": ('[TOOL_CALLS]f[CALL_ID]VvvODy9mT[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    "a name and no mark of its arguments": ('[TOOL_CALLS]f{"a": 1}', "", [("f", '{"a": 1}')]),
    "text before the mark": (f"Let me add.\n[TOOL_CALLS][{ADD}]", "Let me add.", [ADD_CALL]),
    "text after a list": (f"[TOOL_CALLS][{ADD}] Done.", " Done.", [ADD_CALL]),
    "marks inside strings": (
        '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]g[ARGS]{}]"}',
        "",
        [("f", '{"a": "[TOOL_CALLS]g[ARGS]{}]"}')],
    ),
    "a list without an end": (f"[TOOL_CALLS][{ADD}, ", "", [ADD_CALL]),
    "cut in a list's arguments": (f"[TOOL_CALLS][{ADD}, {ADD[:40]}", "", [ADD_CALL, ("add", ADD[29:40])]),
    "cut in a name's arguments": ('[TOOL_CALLS]f[ARGS]{"a": "x', "", [("f", '{"a": "x')]),
    "cut in the mark": ("a [TOOL_CA", "a [TOOL_CA", []),
    "cut in the name": ("[TOOL_CALLS]get_we", "[TOOL_CALLS]get_we", []),
    "cut in the second mark": ("[TOOL_CALLS]get_weather[AR", "[TOOL_CALLS]get_weather[AR", []),
    "no mark": (f"[{ADD}]", f"[{ADD}]", []),
    "a mark and a text": ("[TOOL_CALLS] are how I call.", "[TOOL_CALLS] are how I call.", []),
    "an empty list": ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    "a list of something else": ('[TOOL_CALLS][{"a": 1}] x', '[TOOL_CALLS][{"a": 1}] x', []),
    "a bad call after a good one": (f'[TOOL_CALLS][{ADD}, {{"a": 1}}]', ', {"a": 1}]', [ADD_CALL]),
    "a name and a text": ("[TOOL_CALLS]f[ARGS]none", "[TOOL_CALLS]f[ARGS]none", []),
    "a mark after a broken one": ("[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]f", [("g", "{}")]),
    "arguments that are a list": ("[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS][1]", []),
    "an indexed text": ("a[0] and [TOOL", "a[0] and [TOOL", []),
}
FAMILIES = {"hermes": HERMES, "llama3_json": LLAMA3, "mistral": MISTRAL}
ANSWERS = {f"{form}: {row}": (form, *values) for form, rows in FAMILIES.items() for row, values in rows.items()}


def cut(answer: str, places: list[int]) -> list[str]:
    return [answer[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(answer)])]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers(form, answer, text, calls):
    want = (text, [(f"id{index}", *call) for index, call in enumerate(calls)])
    assert parse([answer], form=form) == want
    assert parse(answer, form=form) == want, "letter by letter"
    rng = random.Random(0)
    for _ in range(20):
        assert parse(cut(answer, rng.sample(range(len(answer) + 1), k=3)), form=form) == want


SCRAPS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", "{", "}"),
        *('"name": "f"', '"arguments": ', '"parameters": ', '"', "\\", ",", ";", ":", " ", "\n", "f", "é", "<", "1"),
        *(WEATHER, ADD, CALL, '{"a": "}]"}', '{"name": "f", "arguments": {'),
    ]
)


@given(st.sampled_from(sorted(FORMS)), st.lists(SCRAPS, max_size=12).map("".join), st.data())
def test_the_pieces_make_no_difference_whatever_the_answer(form, answer, data):
    places = data.draw(st.lists(st.integers(0, len(answer)), max_size=6))
    whole = parse([answer], form=form)
    assert parse(cut(answer, places), form=form) == whole
    assert parse(answer, form=form) == whole


@given(st.sampled_from(sorted(FORMS)), st.lists(SCRAPS, max_size=12).map("".join))
def test_an_answer_without_calls_is_a_text_as_it_is(form, answer):
    text, calls = parse([answer], form=form)
    assert calls or text == answer


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
WRITTEN = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True),
            "arguments": st.dictionaries(st.text(max_size=4), VALUES, max_size=2),
        }
    ),
    min_size=1,
    max_size=3,
)


@given(st.sampled_from([*FORMS.values(), MistralForm(is_named=True)]), WRITTEN)
@example(FORMS["mistral"], [{"name": "f", "arguments": {"a": "]"}}])
def test_what_a_form_writes_it_reads(form, calls):
    text, found = parse([form.write(calls)], form=form.name)
    assert text == ""
    assert [(name, json.loads(arguments)) for _, name, arguments in found] == [
        (call["name"], call["arguments"]) for call in calls
    ]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), ANSWERS.values(), ids=ANSWERS.keys())
def test_nothing_of_a_call_leaks_on_the_way(form, answer, text, calls):
    """What a client has seen after any number of letters is the beginning of what it sees at the end."""
    parser = FORMS[form].parser(max_calls=8, new_id=lambda: "x")
    seen = ""
    for char in answer:
        seen += parser.push(char).text
        assert text.startswith(seen)


def test_calls_beyond_the_allowed_number_are_dropped():
    assert parse([CALL + CALL], max_calls=1) == ("", [("id0", "f", '{"a": 1}')])


def test_arguments_arrive_as_they_come():
    parser = HermesForm().parser(max_calls=1, new_id=lambda: "x")
    seen = [parser.push(piece).calls for piece in ('<tool_call>{"name": "f", ', '"arguments": {"a"', ": 1", "}}")]
    assert [[(piece.name, piece.arguments) for piece in calls] for calls in seen] == [
        [],
        [("f", ""), (None, '{"a"')],
        [(None, ": 1")],
        [(None, "}")],
    ]


def test_calls_beyond_the_allowed_number_are_dropped_in_each_form():
    for form, answer in (("llama3_json", f"{TIME}; {TIME} more"), ("mistral", f"[TOOL_CALLS][{ADD}, {ADD}] more")):
        text, calls = parse([answer], max_calls=1, form=form)
        assert (text, len(calls)) == ("", 1)


JUNK = {
    "hermes": '<tool_call>{"name": "' + '\\"' * 20_000,
    "llama3_json": '{"name": "' + "{" * 40_000,
    "mistral": "[TOOL_CALLS][{" + "[" * 40_000,
}


@pytest.mark.parametrize(("form", "junk"), JUNK.items(), ids=JUNK.keys())
def test_a_long_text_that_never_becomes_a_call(form, junk):
    assert parse([junk[i : i + 64] for i in range(0, len(junk), 64)], form=form) == (junk, [])

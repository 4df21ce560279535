"""Stop strings in streams: exact cases, and the property that the pieces a text comes in do not matter."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.server.stopping import StopStrings

# sentence → (stop strings, include, pieces, text after each piece, matched, flushed)
CASES = {
    "without stop strings everything passes at once": ([], False, ["ab", "c"], ["ab", "c"], None, ""),
    "a stop string in one piece cuts before it": (["b"], False, ["abc"], ["a"], "b", ""),
    "a stop string over two pieces never shows its first half": (
        ["STOP"],
        False,
        ["xST", "OPy"],
        ["x", ""],
        "STOP",
        "",
    ),
    "a tail that only looked like one comes with the next piece": (
        ["STOP"],
        False,
        ["xST", "Ay"],
        ["x", "STAy"],
        None,
        "",
    ),
    "a tail held back at the end is flushed": (["STOP"], False, ["xSTO"], ["x"], None, "STO"),
    "the stop string is kept when asked for": (["b"], True, ["abc"], ["ab"], "b", ""),
    "the string that is complete first wins": (["abcd", "c"], False, ["abcd"], ["ab"], "c", ""),
    "on a tie the longer one wins": (["c", "bc"], False, ["abcd"], ["a"], "bc", ""),
    "overlapping beginnings are followed": (["aab"], False, ["aaa", "b"], ["a", ""], "aab", ""),
    "characters beyond ASCII count as characters": (["é!"], False, ["caf", "é", "!"], ["caf", "", ""], "é!", ""),
}


@pytest.mark.parametrize(("stops", "include", "pieces", "want", "matched", "flushed"), CASES.values(), ids=CASES.keys())
def test_cases(stops, include, pieces, want, matched, flushed):
    watch = StopStrings(stops, include=include)
    cuts = [watch.push(piece) for piece in pieces]
    assert [cut.text for cut in cuts] == want
    assert cuts[-1].matched == matched
    assert watch.flush() == flushed


@given(
    text=st.text("ab", max_size=24),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    borders=st.lists(st.integers(0, 24), max_size=6),
)
def test_the_result_depends_on_the_text_alone(text, stops, borders):
    assert _run(stops, _split(text, borders)) == _run(stops, [text])


@given(text=st.text("ab", max_size=24), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_nothing_is_lost_and_no_stop_string_shows(text, stops):
    shown, matched = _run(stops, list(text))
    assert text.startswith(shown + (matched or "")) if matched else shown == text
    assert not any(stop in shown for stop in stops)


def _split(text, borders):
    cuts = sorted({0, len(text), *(border for border in borders if border < len(text))})
    return [text[a:b] for a, b in itertools.pairwise(cuts)] or [""]


def _run(stops, pieces):
    watch, shown = StopStrings(stops), ""
    for piece in pieces:
        cut = watch.push(piece)
        shown += cut.text
        if cut.matched:
            return shown, cut.matched
    return shown + watch.flush(), None

"""JSON bodies: what is parsed, what is refused, and with which sentence."""

from __future__ import annotations

import pytest

from pagefleet_engine.server.body import parse_json
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits

LIMITS = Limits(json_depth=3, json_nodes=10)

REFUSED = {
    "an empty body": (b"", "invalid_json"),
    "text that is no JSON": (b"hello", "invalid_json"),
    "a list instead of an object": (b"[]", "invalid_json"),
    "something after the object": (b"{} {}", "invalid_json"),
    "NaN": (b'{"temperature": NaN}', "invalid_json"),
    "minus infinity": (b'{"temperature": -Infinity}', "invalid_json"),
    "a number that becomes infinite": (b'{"temperature": 1e400}', "invalid_json"),
    "an integer of 5,000 digits": (b'{"n": ' + b"9" * 5000 + b"}", "invalid_json"),
    "a lone surrogate": (b'{"prompt": "\\ud800"}', "invalid_json"),
    "bytes that are not UTF-8": (b'{"prompt": "\xff"}', "invalid_json"),
    "UTF-16": ('{"prompt": "a"}'.encode("utf-16"), "invalid_json"),
    "100,000 opening brackets": (b"[" * 100_000, "invalid_json"),
    "an object one level too deep": (b'{"a": {"b": {"c": {"d": 1}}}}', "json_too_deep"),
    "a list one value too long": (b'{"a": [1,2,3,4,5,6,7,8,9]}', "json_too_large"),
}


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(raw, code):
    with pytest.raises(ApiError) as caught:
        parse_json(raw, LIMITS)
    assert (caught.value.body.status, caught.value.body.code) == (400, code)


ACCEPTED = {
    "as deep as allowed": (b'{"a": {"b": {"c": 1}}}', {"a": {"b": {"c": 1}}}),
    "as long as allowed": (b'{"a": [1,2,3,4,5,6,7,8]}', {"a": [1, 2, 3, 4, 5, 6, 7, 8]}),
    "a NUL character": (b'{"a": "\\u0000"}', {"a": "\0"}),
    "a pair of surrogates": (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    "a key twice: the last one counts": (b'{"a": 1, "a": 2}', {"a": 2}),
}


@pytest.mark.parametrize(("raw", "want"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(raw, want):
    assert parse_json(raw, LIMITS) == want

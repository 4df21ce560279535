"""JSON bodies: what is parsed, what is refused, with which sentence, and what all of them together may cost."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from pagefleet_engine.server.body import BodyReader, parse_json
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.json_shape import holds_more_values, json_fits
from pagefleet_engine.server.json_texts import JsonTexts
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import HOST, FakeEngine, running_server, say

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
    "100,000 opening brackets": (b"[" * 100_000, "json_too_large"),
    "as many as are allowed": (b"[" * 9, "invalid_json"),
    "an object one level too deep": (b'{"a": {"b": {"c": {"d": 1}}}}', "json_too_deep"),
    "a list one value too long": (b'{"a": [1,2,3,4,5,6,7,8,9]}', "json_too_large"),
    "a list of empty objects": (b'{"a": [{},{},{},{},{},{},{},{ },[\n]]}', "json_too_large"),
    "more strings than values": (b'{"a": [' + b'"",' * 50 + b'""]}', "json_too_large"),
}


@pytest.mark.parametrize(("raw", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(raw, code):
    with pytest.raises(ApiError) as caught:
        parse_json(raw, LIMITS)
    assert (caught.value.body.status, caught.value.body.code) == (400, code)


ACCEPTED = {
    "as deep as allowed": (b'{"a": {"b": {"c": 1}}}', {"a": {"b": {"c": 1}}}),
    "as long as allowed": (b'{"a": [1,2,3,4,5,6,7,8]}', {"a": [1, 2, 3, 4, 5, 6, 7, 8]}),
    "as many empty objects as allowed": (b'{"a": [{},{},{},{},{},{},{ },[\n]]}', {"a": [{}] * 7 + [[]]}),
    "a text full of brackets and commas": (b'{"a": "[{,[{,[{,[{,[{,\\",[{"}', {"a": '[{,[{,[{,[{,[{,",[{'}),
    "a text that ends in a backslash": (b'{"a": ["[,[,[,[,\\\\", "[,[,[,[,"]}', {"a": ["[,[,[,[,\\", "[,[,[,[,"]}),
    "a NUL character": (b'{"a": "\\u0000"}', {"a": "\0"}),
    "a pair of surrogates": (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    "a key twice: the last one counts": (b'{"a": 1, "a": 2}', {"a": 2}),
}


@pytest.mark.parametrize(("raw", "want"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(raw, want):
    assert parse_json(raw, LIMITS) == want


def num_values(value) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(num_values, inner))


TEXTS = st.text(alphabet='a,[]{}":\\ \n\u00e9')
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)),
    max_leaves=30,
)


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_the_count_of_values_is_exact(value, indent, ascii_only):
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    found = num_values(value)
    assert [holds_more_values(raw, most) for most in (found - 1, found, found + 1)] == [True, False, False]


@given(VALUES, st.integers(-2, 2))
def test_whether_a_value_fits_is_exact(value, more):
    size = len(json.dumps(value))
    assert json_fits(value, size + more) is (more >= 0)


def test_a_value_that_is_far_too_large_is_not_written_out():
    value = [["a" * 1_000] * 1_000] * 100
    tracemalloc.start()
    try:
        assert not json_fits(value, 65_536)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_json_in_a_string_keeps_the_rules_of_the_body():
    for text, code in (
        ('{"a": {"b": {"c": {"d": 1}}}}', "json_too_deep"),
        ("[1e400]", "invalid_json"),
        ("[1,2,3,4,5,6,7,8,9,10,11]", "json_too_large"),
        ("{", None),
    ):
        with pytest.raises(ApiError) as caught:
            JsonTexts(LIMITS).parse(text, param="a", expects="is no JSON")
        assert (caught.value.body.param, caught.value.body.code) == ("a", code), text
    assert JsonTexts(LIMITS).parse('["[,[,[,[,[,[,[,[,[,[,[,"]', param="a", expects="") == ["[," * 11]


HUGE = {
    "empty objects": b"{}," * 300_000,
    "empty strings": b'"",' * 300_000,
    "objects": b'{"a":{}},' * 100_000,
}


@pytest.mark.parametrize("items", HUGE.values(), ids=HUGE.keys())
def test_what_holds_too_many_values_is_refused_without_building_them(items):
    """A value takes dozens of bytes for each of its text's; the count takes a few copies of the text."""
    raw = b'{"a": [' + items + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(ApiError):
            parse_json(raw, Limits(json_nodes=50_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * len(raw)


SMALL = Limits(body_inline_bytes=1_000, bodies_bytes=5_000)
ASK = {"prompt": "a", "max_tokens": 1}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (the server announces no piece)
        await asyncio.sleep(0.001)


async def test_large_bodies_share_a_budget_and_small_ones_pass():
    large = json.dumps(ASK | {"user": "a" * 3_000}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(large)
    async with running_server(FakeEngine(say("x")), limits=SMALL) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            reader, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(head + large[:2_900])
            await until(lambda: server.service.bodies.num_held_bytes >= 2_900)
            refused = await client.post("/v1/completions", content=large)
            small = await client.post("/v1/completions", json=ASK)
            writer.write(large[2_900:])
            first = await reader.read()
            writer.close()
            after = await client.post("/v1/completions", content=large)
        assert server.service.bodies.num_held_bytes == 0
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["message"] == "too many large bodies are being read: try again"
    assert first.startswith(b"HTTP/1.1 200 ")
    assert (small.status_code, after.status_code) == (200, 200)


async def test_a_body_that_is_given_up_gives_its_share_back():
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
    async with running_server(FakeEngine(say("x")), limits=SMALL) as server:
        bodies = server.service.bodies
        for _ in range(3):
            _, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(head + b" " * 3_000)
            await until(lambda: bodies.num_held_bytes >= 3_000)
            writer.close()
            await until(lambda: bodies.num_held_bytes == 0)


async def test_large_bodies_are_parsed_one_after_the_other():
    body = json.dumps({"prompt": [[1] * 60_000], "max_tokens": 1}).encode()
    async with (
        running_server(FakeEngine(say("x"))) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        replies = await asyncio.gather(*(client.post("/v1/completions", content=body) for _ in range(6)))
        assert server.service.bodies.num_held_bytes == 0
    assert [reply.json()["error"]["code"] for reply in replies] == ["context_length_exceeded"] * 6


@pytest.mark.parametrize(("num_bytes", "beside"), [(900, False), (3_000, True)])
async def test_the_checks_of_a_large_body_run_beside_the_event_loop(num_bytes, beside):
    reader, sent = BodyReader(SMALL), json.dumps({"a": "x" * num_bytes}).encode()

    async def receive():
        return {"type": "http.request", "body": sent, "more_body": False}

    request = Request({"type": "http", "headers": []}, receive)
    assert (await reader.read(request))["a"] == "x" * num_bytes
    thread = await reader.check(request, threading.current_thread)
    assert (thread is not threading.current_thread()) is beside

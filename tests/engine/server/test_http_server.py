"""What the HTTP server was chosen for: slow and oversized headers, slow bodies, readers that stop reading.

Time-outs here are fractions of a second by configuration; the tests wait for the server to act, not for a time.
"""

from __future__ import annotations

import asyncio

import pytest

from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.http import check_port
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.reply import ConnectionAges, label_of
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import HOST, FakeEngine, running_server, say

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

# sentence → (bytes sent before falling silent, first line of the answer; empty when the connection just closes)
SILENT = {
    "a client that says nothing": (b"", b""),
    "half a request line": (b"GET /hea", b""),
    "a header without its end": (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: b", b""),
    "an idle connection after a request": (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
    "a body without its end": (POST + b'Content-Length: 99\r\n\r\n{"prompt"', b"HTTP/1.1 408 Request Timeout"),
    "a chunked body without its end": (
        POST + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"pr\r\n',
        b"HTTP/1.1 408 Request Timeout",
    ),
}

# sentence → (request, first line of the answer)
ANSWERED = {
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", b"HTTP/1.1 400 Bad Request"),
    "a space before the colon": (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    "HTTP/0.9": (b"GET /health\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    "a TLS greeting": (b"\x16\x03\x01\x00\xff hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    "a declared length above the limit": (POST + b"Content-Length: 5000\r\n\r\n", b"HTTP/1.1 413 Payload Too Large"),
    "a chunked body above the limit": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"800\r\n" + b"a" * 2048 + b"\r\n" + b"801\r\n" + b"a" * 2049,
        b"HTTP/1.1 413 Payload Too Large",
    ),
    "a body in too many pieces": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 60,
        b"HTTP/1.1 413 Payload Too Large",
    ),
    "a chunk size that is no number": (
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 400 Bad Request",
    ),
    "an absolute target": (b"GET http://other/health HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200 OK"),
}


async def talk(port: int, sent: bytes) -> bytes:
    """Send, then read until the server closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


async def test_silent_clients_are_let_go(small_limits):
    async with running_server(FakeEngine(say("x")), limits=small_limits) as server:
        got = await asyncio.gather(*(talk(server.port, sent) for sent, _ in SILENT.values()))
    first_lines = {sentence: reply.split(b"\r\n")[0] for sentence, reply in zip(SILENT, got, strict=True)}
    assert first_lines == {sentence: want for sentence, (_, want) in SILENT.items()}


async def test_malformed_requests_are_answered(small_limits):
    async with running_server(FakeEngine(say("x")), limits=small_limits) as server:
        got = await asyncio.gather(*(talk(server.port, sent) for sent, _ in ANSWERED.values()))
    first_lines = {sentence: reply.split(b"\r\n")[0] for sentence, reply in zip(ANSWERED, got, strict=True)}
    assert first_lines == {sentence: want for sentence, (_, want) in ANSWERED.items()}


async def test_two_lengths_are_never_two_requests(small_limits):
    """Length and chunks together: the chunks count, and the connection ends there."""
    smuggled = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    sent = POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    async with running_server(FakeEngine(say("x")), limits=small_limits) as server:
        reply = await talk(server.port, sent)
    assert reply.count(b"HTTP/1.1 ") == 1


async def test_hundreds_of_half_open_connections_leave_the_others_alone():
    async with running_server(FakeEngine(say("x"))) as server:
        held = await asyncio.gather(*(asyncio.open_connection(HOST, server.port) for _ in range(300)))
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\nX-A: ")
        reply = await talk(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for _, writer in held:
            writer.close()
    assert reply.startswith(b"HTTP/1.1 200 OK")


async def test_a_reader_that_stops_reading_loses_its_request(small_limits, caplog):
    engine = FakeEngine(lambda _prompt, _params: [97] * 200_000, max_model_len=300_000)
    async with running_server(engine, limits=small_limits) as server:
        _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        body = b'{"prompt": "a", "stream": true, "max_tokens": 200000}'
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await engine.until(lambda: engine.num_aborted == 1)
        writer.transport.abort()
    assert caplog.records == []


async def test_an_old_connection_is_closed_after_its_answer():
    now = [0.0]
    service = Service(limits=Limits(), monotonic=lambda: now[0])
    async with running_server(FakeEngine(say("x")), service=service) as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        first = await reader.readuntil(b"ok\n")
        now[0] = 301.0
        writer.write(request)
        second = await reader.read()
        writer.close()
    assert (b"connection: close" in first.lower(), b"connection: close" in second.lower()) == (False, True)


def use(ages: ConnectionAges, *ports: int) -> list[int]:
    """One request from each port; those whose connection is to be closed."""
    old = []
    for port in ports:
        with ages.using(("10.0.0.1", port)):
            old += [port] * ages.is_old(("10.0.0.1", port))
    return old


def test_a_connection_ages_beside_any_number_of_new_ones():
    """20 connections a second that ask once each, and one that asks every second."""
    now = [0.0]
    ages = ConnectionAges(Limits(connections=100, connection_age_s=300), lambda: now[0])
    closed_at, others = [], 0
    for second in range(605):
        now[0] = second
        closed_at += [second] * len(use(ages, 1))
        others += len(use(ages, *range(1_000 + 20 * second, 1_020 + 20 * second)))
        assert len(ages) <= 100
    assert (closed_at, others) == ([301, 603], 0)


def test_a_connection_ages_while_its_answer_takes_long():
    now = [0.0]
    ages = ConnectionAges(Limits(connections=100, connection_age_s=300), lambda: now[0])
    with ages.using(("10.0.0.1", 1)):
        assert not ages.is_old(("10.0.0.1", 1))
        for port in range(2, 500):
            now[0] = port
            use(ages, port)
    assert use(ages, 1, 499) == [1]
    assert use(ages, 1) == []  # closed, so this is another one


def test_requests_that_follow_each_other_closely_are_one_connection_s():
    now = [0.0]
    ages = ConnectionAges(Limits(connection_age_s=300), lambda: now[0])
    first, second = ages.using(("10.0.0.1", 1)), ages.using(("10.0.0.1", 1))
    first.__enter__()
    now[0] = 301.0
    second.__enter__()
    first.__exit__(None, None, None)
    assert ages.is_old(("10.0.0.1", 1))
    second.__exit__(None, None, None)
    assert len(ages) == 0


async def test_a_port_in_use_is_named():
    async with running_server(FakeEngine(say("x"))) as server:
        with pytest.raises(StartupError) as caught:
            check_port(HOST, server.port)
    reason = f"cannot listen on {HOST}: Address already in use; choose another --port, or another --host"
    assert str(caught.value) == f"--port {server.port}: {reason}"


# sentence → (X-Request-Id sent, whether it comes back)
LABELS = {
    "a word": (b"abc-1.2:3", True),
    "nothing": (b"", False),
    "a space in it": (b"a b", False),
    "bytes beyond ASCII": (b"\xff", False),
    "129 characters": (b"a" * 129, False),
}


@pytest.mark.parametrize(("sent", "kept"), LABELS.values(), ids=LABELS.keys())
def test_a_client_s_request_id_is_a_label(sent, kept):
    got = label_of([(b"x-request-id", sent)])
    assert (got == sent) is kept
    assert len(got) == (len(sent) if kept else 32)

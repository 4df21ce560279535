"""The engines' client against servers that misbehave, on loopback sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pagefleet_engine.contract.control import RuntimeChange
from pagefleet_operator.engine_client import MAX_REPLY, EngineClient, Ports, Timeouts
from pagefleet_operator.engine_tokens import TokenCache
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.errors import EngineRefusedError, EngineUnreachableError, GenerationConflictError

POD = EnginePod(name="smollm2-0", uid="uid-1", ip="127.0.0.1")
STATE = b'{"phase": "ready", "in_flight": 0, "running": 0, "waiting": 0, "swapped": 0}'


class Keys:
    key = Ed25519PrivateKey.generate()

    def signer(self):
        return self.key


def reply(body, status="200 OK", headers=()):
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def serving(answer, *, ip="127.0.0.1", total=5.0, max_connections=4):
    """A client, and what it sent to a server that runs `answer(writer)` for every request."""
    seen, running = [], []

    async def handle(reader, writer):
        running.append(asyncio.current_task())
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        try:
            await answer(writer)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass  # a handler that ends as cancelled is an error for asyncio's streams
        finally:
            writer.close()

    server = await asyncio.start_server(handle, ip, 0)
    port = server.sockets[0].getsockname()[1]
    ports, timeouts = Ports(api=port, control=port), Timeouts(total=total)
    client = EngineClient(Keys(), lambda: 1000.0, ports=ports, timeouts=timeouts, max_connections=max_connections)
    try:
        async with client:
            yield client, seen
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        server.close()
        await server.wait_closed()


def sends(data):
    async def answer(writer):
        writer.write(data)

    return answer


async def hangs(_writer):
    await asyncio.Event().wait()


async def dribbles(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def floods(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(160):
        writer.write(b"x" * 65536)
        await writer.drain()


# sentence → (server, seconds that it has, what is said)
UNREACHABLE = {
    "it hangs": (hangs, 0.2, r"no full answer within 0\.2 s"),
    "it dribbles": (dribbles, 0.2, r"no full answer within 0\.2 s"),
    "it sends 10 MB": (floods, 5, f"the answer is longer than {MAX_REPLY} bytes"),
    "it closes at once": (sends(b""), 5, "Server disconnected without sending a response."),
    "it closes in the middle": (sends(reply(STATE)[:-5]), 5, "peer closed connection without sending complete"),
    "it speaks no HTTP": (sends(b"SSH-2.0-OpenSSH\r\n\r\n"), 5, "illegal status line"),
    "its header has no end": (sends(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000), 5, "too long"),
}


@pytest.mark.parametrize(("server", "total", "want"), UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_no_full_answer(server, total, want):
    async with serving(server, total=total) as (client, _):
        with pytest.raises(EngineUnreachableError, match=rf"^pod smollm2-0: GET :\d+/v1/state: .*{want}"):
            await client.read_state(POD)
        with pytest.raises(EngineUnreachableError, match=rf"^pod smollm2-0: GET :\d+/metrics: .*{want}"):
            await client.read_metrics(POD)


ENDING = b'{"error": {"message": "it ends", "code": "ending"}}'
CONFLICT = b'{"error": {"message": "read it again", "code": "generation_conflict"}}'
# sentence → (answer, status, what is said)
REFUSED = {
    "a redirect": (reply(b"", "302 Found", ["location: http://127.0.0.1/"]), 302, "a redirect, which is not followed"),
    "no JSON": (reply(b"hello"), 200, "answered no EngineState: Invalid JSON"),
    "JSON of another kind": (reply(b'{"phase": "ready"}'), 200, "answered no EngineState: in_flight: Field required"),
    "compressed bytes": (reply(b"\x1f\x8b", headers=["content-encoding: gzip"]), 200, "answered no EngineState"),
    "an error in the API's shape": (reply(b'{"error": {"message": "a\\nb"}}', "503 X"), 503, "503: a b$"),
    "an error as text": (reply(b"<html>\x00 no", "502 X"), 502, "502: <html> no$"),
    "an error without a word": (reply(b"", "500 X"), 500, "500: no reason given$"),
    "deep JSON": (reply(b"[" * 100_000, "500 X"), 500, r"500: \[+$"),
    "a drain that ends the process": (reply(ENDING, "409 X"), 409, "409: it ends$"),
}


@pytest.mark.parametrize(("data", "status", "want"), REFUSED.values(), ids=REFUSED.keys())
async def test_refusals(data, status, want):
    async with serving(sends(data)) as (client, _):
        with pytest.raises(EngineRefusedError, match=rf"^pod smollm2-0: .*{want}") as error:
            await client.read_state(POD)
    assert error.value.status == status
    assert not isinstance(error.value, GenerationConflictError)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


async def test_a_conflict_is_told_apart():
    async with serving(sends(reply(CONFLICT, "409 X"))) as (client, _):
        with pytest.raises(GenerationConflictError, match="read it again"):
            await client.change_config(POD, RuntimeChange(expected_generation=1, cap=2))


async def test_it_sends_nothing_that_it_was_told_before():
    cookie = ["set-cookie: a=b; path=/"]
    async with serving(sends(reply(STATE, headers=cookie))) as (client, seen):
        await client.read_state(POD)
        await client.read_state(POD)
    assert len(seen) == 2
    assert [line for request in seen for line in request.splitlines() if line.lower().startswith("cookie")] == []


async def test_no_proxy_of_the_environment_s_is_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with serving(sends(reply(STATE))) as (client, _):
        assert (await client.read_state(POD)).phase == "ready"


async def test_an_ipv6_address_is_put_in_brackets():
    async with serving(sends(reply(STATE)), ip="::1") as (client, seen):
        await client.read_state(EnginePod(name="six", uid="uid-6", ip="::1"))
    assert "\r\nHost: [::1]:" in seen[0]


@pytest.mark.parametrize("ip", ["", "localhost", "10.0.0.1/../x", "fe80::1%eth0@evil"])
async def test_what_is_no_address_is_not_asked(ip):
    async with serving(sends(reply(STATE))) as (client, seen):
        with pytest.raises(EngineUnreachableError, match=r"^pod lost: was not asked: .* is no IP address$"):
            await client.read_state(EnginePod(name="lost", uid="uid-7", ip=ip))
    assert seen == []


async def test_waiting_for_a_turn_is_not_the_pod_s_fault():
    asked = []

    async def answer(writer):
        asked.append(writer)
        if len(asked) == 1:
            await hangs(writer)
        writer.write(reply(STATE))

    async with serving(answer, total=0.3, max_connections=1) as (client, _):
        calls = [client.read_state(POD) for _ in range(4)]
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, EngineUnreachableError)
    assert [state.phase for state in others] == ["ready"] * 3


def test_a_token_is_used_until_half_of_its_life_is_over():
    now, first, second = [1000.0], Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    cache = TokenCache(lambda: now[0])
    token = cache.token("uid-1", first)
    now[0] = 1149.0
    assert cache.token("uid-1", first) == token
    assert cache.token("uid-2", first) != token
    assert cache.token("uid-1", second) != token
    token = cache.token("uid-1", second)
    now[0] = 1300.0
    assert cache.token("uid-1", second) != token
    young = cache.token("uid-1", second)
    now[0] = 900.0
    assert cache.token("uid-1", second) != young


def test_tokens_of_pods_that_have_gone_do_not_pile_up():
    key, now = Ed25519PrivateKey.generate(), [0.0]
    cache = TokenCache(lambda: now[0], max_tokens=3)
    for uid in ("a", "b", "c", "d"):
        cache.token(uid, key)
    assert len(cache) == 1
    now[0] = 100.0
    for uid in ("e", "f"):
        cache.token(uid, key)
    now[0] = 200.0
    cache.token("g", key)
    assert len(cache) == 3

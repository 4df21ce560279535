"""A client that leaves frees what it holds, whatever is being done for it: before, in and after the engine."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.testing import ByteTokenizer

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}

# sentence → (path, body); each with and without a stream where there is one
TOKENISING = {
    "a completion": ("/v1/completions", {"prompt": "a"}),
    "a stream": ("/v1/completions", {"prompt": "a", "stream": True}),
    "a chat": ("/v1/chat/completions", CHAT),
    "a chat as a stream": ("/v1/chat/completions", CHAT | {"stream": True}),
    "a beam search": ("/v1/completions", {"prompt": "a", "use_beam_search": True, "n": 2}),
    "the tokens of a text": ("/tokenize", {"prompt": "a"}),
    "the tokens of a chat": ("/tokenize", CHAT),
    "the text of tokens": ("/detokenize", {"tokens": [97]}),
}

COMPILING = {
    "a form": ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "a+"}}),
    "a schema in a stream": ("/v1/chat/completions", CHAT | {"response_format": SCHEMA, "stream": True}),
}


class HeldTokenizer(ByteTokenizer):
    """Works on a client's text only once the test lets it."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()

    def encode(self, text, *, add_special_tokens=True):
        self._hold()
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids, *, skip_special_tokens=True):
        self._hold()
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _hold(self) -> None:
        if threading.current_thread().name.startswith("text"):
            self.began.set()
            self.let_go.wait()


async def leave_when(server, path, body, begun) -> None:
    """Ask, leave once `begun` is set, and return when the server serves nobody any more."""
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        asking = asyncio.create_task(client.post(path, json=body))
        await asyncio.to_thread(begun.wait)
        assert server.service.lifecycle.in_flight == 1
        asking.cancel()
    await server.service.lifecycle.wait_idle()


@pytest.mark.parametrize(("path", "body"), TOKENISING.values(), ids=TOKENISING.keys())
async def test_while_its_text_is_tokenised(path, body):
    engine = FakeEngine(say("hello"))
    engine.tokenizer = held = HeldTokenizer()
    async with running_server(engine) as server:
        try:
            await leave_when(server, path, body, held.began)
        finally:
            held.let_go.set()
    assert engine.prompts == []


@pytest.mark.parametrize(("path", "body"), COMPILING.values(), ids=COMPILING.keys())
async def test_while_its_form_is_compiled(path, body):
    engine, began, let_go = FakeEngine(say("hello")), threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        let_go.wait()

    async with running_server(engine) as server:
        for _ in range(server.service.limits.structured_threads):
            server.service.structured._compiling.submit(hold)
        begun = threading.Event()
        asyncio.get_running_loop().call_soon(_tell_when_in_flight, server.service.lifecycle, begun)
        try:
            await leave_when(server, path, body, begun)
        finally:
            let_go.set()
    assert engine.prompts == []


def _tell_when_in_flight(lifecycle, begun: threading.Event) -> None:
    if lifecycle.in_flight:
        begun.set()
    else:
        asyncio.get_running_loop().call_later(0.001, _tell_when_in_flight, lifecycle, begun)


# What a request of the engine may be doing when its client leaves: tokens that it got before.
@pytest.mark.parametrize("num_tokens", [0, 2], ids=["queued or in prefill", "between two tokens"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_while_the_engine_works_on_it(stream, num_tokens):
    gate = asyncio.Semaphore(0)
    engine = FakeEngine(say("hello"), gate=gate)
    async with running_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a", "stream": stream}))
            await engine.until(lambda: len(engine.running) == 1)
            for _ in range(num_tokens):
                gate.release()
            asking.cancel()
        await engine.until(lambda: engine.num_aborted == 1)
        await server.service.lifecycle.wait_idle()
    assert engine.running == set()

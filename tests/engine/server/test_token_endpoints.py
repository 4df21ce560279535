"""`/tokenize` and `/detokenize`: what they refuse, and no work of theirs on the event loop at a whole context."""

from __future__ import annotations

import threading

import httpx

from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.testing import ByteTokenizer

LONGEST = 4_096
TOO_LONG = "context_length_exceeded"
NO_TOKEN = "is no token id: the model's are 0 to 259"


class Witness(ByteTokenizer):
    """Keeps the names of the threads that it works in."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def decode(self, token_ids, *, skip_special_tokens=True):
        self.threads.add(threading.current_thread().name)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id):
        self.threads.add(threading.current_thread().name)
        return super().token_text(token_id)


async def test_a_whole_context_comes_from_the_threads_for_texts():
    engine = FakeEngine(say("x"), max_model_len=LONGEST)
    engine.tokenizer = Witness()
    ids = [97] * LONGEST
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        body = {"prompt": "a" * LONGEST, "add_special_tokens": False, "return_token_strs": True}
        there = await client.post("/tokenize", json=body)
        back = await client.post("/detokenize", json={"tokens": ids})
    assert there.json() == {"count": LONGEST, "max_model_len": LONGEST, "tokens": ids, "token_strs": ["a"] * LONGEST}
    assert back.json() == {"prompt": "a" * LONGEST}
    assert {name.split("_")[0] for name in engine.tokenizer.threads} == {"text"}


REFUSED = {
    "nothing": ("/tokenize", {}, "prompt", None, "prompt: give either prompt or messages"),
    "a list": ("/tokenize", {"prompt": ["a"]}, "prompt", None, "prompt: must be a string"),
    "a prompt longer than the context": (
        "/tokenize",
        {"prompt": "a" * 70, "return_token_strs": True},
        "prompt",
        TOO_LONG,
        "prompt: 71 tokens: the maximum context length is 64 tokens; send a part at a time",
    ),
    "a dialogue longer than the context": (
        "/tokenize",
        {"messages": [{"role": "user", "content": "a" * 70}]},
        "messages",
        TOO_LONG,
        "messages: 88 tokens: the maximum context length is 64 tokens; send a part at a time",
    ),
    "more tokens than the context holds": (
        "/detokenize",
        {"tokens": [97] * 65},
        "tokens",
        TOO_LONG,
        "tokens: 65 tokens: the maximum context length is 64 tokens; send a part at a time",
    ),
    "token 260": ("/detokenize", {"tokens": [260]}, "tokens", None, f"tokens: 260 {NO_TOKEN}"),
    "token -1": ("/detokenize", {"tokens": [-1]}, "tokens", None, f"tokens: -1 {NO_TOKEN}"),
}


async def test_each_row():
    wrong = {}
    async with (
        running_server(FakeEngine(say("x"), max_model_len=64)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        for sentence, (path, body, param, code, message) in REFUSED.items():
            reply = await client.post(path, json=body)
            error = reply.json().get("error", {})
            found = (reply.status_code, error.get("param"), error.get("code"), error.get("message"))
            if found != (400, param, code, message):
                wrong[sentence] = found
    assert wrong == {}

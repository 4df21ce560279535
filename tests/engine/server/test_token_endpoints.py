"""`/tokenize` and `/detokenize` at the length of a whole context: no work of theirs is done on the event loop."""

from __future__ import annotations

import threading

import httpx

from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.testing import ByteTokenizer

LONGEST = 4_096


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

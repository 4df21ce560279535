"""Work on clients' texts beside the event loop: whom its faults and its waiting times are laid to."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, closing

import pytest

from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.structured import check_structured_outputs
from pagefleet_engine.server.structured_work import StructuredWork
from pagefleet_engine.server.text import TextWorkers
from pagefleet_engine.server.tool_parser_hermes import HermesForm
from pagefleet_engine.structured.verdicts import SchemaCheck
from pagefleet_engine.testing import ByteTokenizer

LIMITS = Limits(tokenizer_threads=1, tokenizer_queue=3, thread_timeout_s=60.0, template_timeout_s=0.05)


@pytest.fixture
def text():
    with closing(TextWorkers(LIMITS)) as workers:
        yield workers


class Slow:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return "done"


@asynccontextmanager
async def occupied(text: TextWorkers, slow: Slow):
    """The only thread is busy with other people's work, whose sender has been refused already."""
    try:
        with pytest.raises(ApiError) as caught:
            await text.run(slow, param="prompt")
        assert caught.value.body.message == "prompt: takes longer than 0.05 s to tokenise; shorten it"
        assert slow.has_begun.is_set()
        yield
    finally:
        slow.may_end.set()


def fail() -> None:
    raise KeyError("the client's secret")


async def test_a_failure_that_nobody_foresaw_is_refused_and_its_words_stay_out_of_the_log(text, caplog):
    with pytest.raises(ApiError) as caught:
        await text.run(fail, param="prompt")
    body = caught.value.body
    assert (body.status, body.param) == (400, "prompt")
    assert body.message == "prompt: cannot be processed: change or shorten it"
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("work on prompt failed: KeyError in fail, line ")
    assert "secret" not in caplog.text


async def test_waiting_for_a_thread_is_no_slowness_of_ones_own(text):
    """It waits for several times what it may take itself."""
    slow = Slow()
    async with occupied(text, slow):
        innocent = asyncio.create_task(text.run(lambda: "fast", param="prompt"))
        done, _ = await asyncio.wait({innocent}, timeout=0.3)
        assert not done
        slow.may_end.set()
        assert await innocent == "fast"


async def test_who_waits_too_long_is_told_to_come_back_and_waits_no_more():
    begun = threading.Event()
    slow = Slow()
    with closing(TextWorkers(Limits(tokenizer_threads=1, thread_timeout_s=0.05, template_timeout_s=0.05))) as text:
        async with occupied(text, slow):
            with pytest.raises(ApiError) as caught:
                await text.run(begun.set, param="prompt")
        assert (caught.value.body.status, caught.value.body.headers) == (429, {"retry-after": "1"})
        assert caught.value.body.message == "other prompts take long to be tokenised: try again"
        assert await text.run(lambda: "next", param="prompt") == "next"
    assert not begun.is_set()


class SlowTokenizer(ByteTokenizer):
    """Whose vocabulary takes as long to prepare as the test wants: it stands for a schema that compiles slowly."""

    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self._slow = slow

    def token_bytes(self, token_id: int) -> bytes:
        if not self._slow.may_end.is_set():
            self._slow()
        return super().token_bytes(token_id)


CHECK = SchemaCheck({"type": "array", "items": {"type": "integer"}})
LONG = "[" + ", ".join(["1"] * 4_000) + "]"
"""Too long to be judged on the event loop."""


async def test_a_verdict_does_not_wait_behind_what_is_compiled():
    slow = Slow()
    with closing(StructuredWork(Limits(structured_threads=1))) as work:
        work.attach(SlowTokenizer(slow), HermesForm())
        assert await asyncio.to_thread(slow.has_begun.wait, 60)
        assert await work.judge(CHECK, LONG) is Outcome.VALID
        slow.may_end.set()


async def test_a_schema_that_waits_behind_others_is_not_called_slow():
    slow = Slow()
    limits = Limits(structured_threads=1, structured_timeout_s=5.0, thread_timeout_s=0.05)
    with closing(StructuredWork(limits)) as work:
        work.attach(ByteTokenizer(), HermesForm())
        wanted = check_structured_outputs({"choice": ["a"]}, limits)
        await work.prepare(wanted)
        work.attach(SlowTokenizer(slow), HermesForm())
        assert await asyncio.to_thread(slow.has_begun.wait, 60)
        with pytest.raises(ApiError) as caught:
            await work.prepare(check_structured_outputs({"json": {"type": "array"}}, limits))
        slow.may_end.set()
        assert (caught.value.body.status, caught.value.body.headers) == (429, {"retry-after": "1"})
        assert await work.prepare(wanted)

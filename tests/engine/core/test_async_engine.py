"""The engine on an event loop: streams, refusals, aborts, closing, and what a fault of the step loop does."""

import asyncio
import threading
from contextlib import aclosing, asynccontextmanager

import pytest

from pagefleet_engine.api import ModelInfo, TokenLogprobs, TokenOutput
from pagefleet_engine.async_engine import AsyncEngine, merge
from pagefleet_engine.errors import EngineDead, QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason, SamplingParams
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.testing import ByteTokenizer, naive_greedy, tiny_core, tiny_decoder

DECODER = tiny_decoder()
INFO = ModelInfo(id="tiny", max_model_len=256, vocab_size=260, eos_token_ids=(257,))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def greedy(num_tokens):
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)


@asynccontextmanager
async def running(**kwargs):
    engine = AsyncEngine(tiny_core(decoder=DECODER, **kwargs), model_info=INFO, tokenizer=ByteTokenizer())
    try:
        yield engine
    finally:
        await engine.close()


async def tokens_of(engine, request_id, params, prompt=PROMPT):
    return [token async for output in engine.generate(request_id, prompt, params) for token in output.token_ids]


class HeldExecutor(LocalExecutor):
    """Executes a step only when the test lets it."""

    gate: threading.Semaphore
    entered: threading.Event

    def execute(self, output):
        self.entered.set()
        self.gate.acquire()
        return super().execute(output)


def held():
    """An executor factory, the semaphore that lets steps through, and the event of the first one."""
    gate, entered = threading.Semaphore(0), threading.Event()

    def executor_of(runner):
        executor = HeldExecutor(runner)
        executor.gate, executor.entered = gate, entered
        return executor

    return executor_of, gate, entered


class FailingExecutor(LocalExecutor):
    def execute(self, output):
        raise RuntimeError("the device has gone")


async def test_many_streams_at_once_each_get_their_own_answer():
    async with running() as engine:
        prompts = {f"r{i}": [i + 1] * (i + 1) for i in range(6)}
        answers = await asyncio.gather(*(tokens_of(engine, name, greedy(9), p) for name, p in prompts.items()))
    assert answers == [naive_greedy(DECODER, prompt, 9) for prompt in prompts.values()]


async def test_the_last_output_says_why_it_is_the_last():
    async with running() as engine:
        outputs = [output async for output in engine.generate("a", PROMPT, greedy(4))]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert outputs[-1].num_prompt_tokens == 8


async def test_a_refusal_comes_before_the_first_output():
    async with running() as engine:
        with pytest.raises(RequestRefused, match="260"):
            await anext(engine.generate("a", [260], greedy(4)))
        assert await tokens_of(engine, "a", greedy(2)) == naive_greedy(DECODER, PROMPT, 2)


async def test_a_request_in_the_queue_is_told_so_before_its_first_token():
    executor_of, gate, _ = held()
    async with running(executor_of=executor_of) as engine, aclosing(engine.generate("a", PROMPT, greedy(2))) as stream:
        first = await anext(stream)
        assert (first.is_empty, first.num_prompt_tokens) == (True, 8)
        gate.release(10)
        rest = [output async for output in stream]
    assert [output.is_empty for output in rest] == [False] * len(rest)


async def test_a_full_queue_refuses_with_a_time():
    executor_of, gate, entered = held()
    async with running(executor_of=executor_of, max_num_queued=1, max_num_seqs=1) as engine:
        # Held in its first step, the loop takes the other four only together: one waits, three are refused.
        first = asyncio.create_task(tokens_of(engine, "a", greedy(1)))
        await asyncio.to_thread(entered.wait)
        others = [asyncio.create_task(tokens_of(engine, name, greedy(1))) for name in "bcde"]
        await until(lambda: len(engine._streams) == 5)
        gate.release(10)
        results = await asyncio.gather(first, *others, return_exceptions=True)
    assert sum(isinstance(result, QueueFull) for result in results) == 3
    assert all(result.retry_after_s >= 1 for result in results if isinstance(result, QueueFull))


async def until(condition):
    while not condition():  # noqa: ASYNC110  what changes it is a thread or another task, with no event to offer
        await asyncio.sleep(0)


async def test_leaving_the_stream_aborts_the_request():
    async with running() as engine:
        async with aclosing(engine.generate("a", PROMPT, greedy(200))) as stream:
            await anext(stream)
        await until(lambda: not engine.stats().has_work)
        assert engine.stats().frames["free"] == 32


async def test_an_abort_from_outside_ends_the_stream():
    executor_of, gate, _ = held()
    async with running(executor_of=executor_of) as engine:
        reading = asyncio.create_task(read(engine.generate("a", PROMPT, greedy(200))))
        await until(lambda: "a" in engine._streams)
        engine.abort("a")
        engine.abort("unknown")
        gate.release(5)
        assert (await reading)[-1].finish_reason is FinishReason.ABORT
        gate.release(500)


async def read(stream):
    return [output async for output in stream]


async def test_a_dead_step_loop_ends_every_stream_and_shows_in_the_stats(caplog):
    async with running(executor_of=FailingExecutor) as engine:
        with pytest.raises(EngineDead, match="the device has gone"):
            await tokens_of(engine, "a", greedy(2))
        assert "the device has gone" in engine.stats().fatal
        with pytest.raises(EngineDead):
            await tokens_of(engine, "b", greedy(2))
    assert "the step loop has died" in caplog.text


async def test_closing_ends_what_runs_and_may_be_repeated():
    executor_of, gate, _ = held()
    async with running(executor_of=executor_of) as engine:
        reading = asyncio.create_task(read(engine.generate("a", PROMPT, greedy(200))))
        await until(lambda: "a" in engine._streams)
        gate.release(1000)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineDead, match="closed"):
            await reading


async def test_an_id_in_use_is_an_error_of_the_caller():
    async with running() as engine, aclosing(engine.generate("a", PROMPT, greedy(200))) as stream:
        await anext(stream)
        with pytest.raises(ValueError, match="in use"):
            await anext(engine.generate("a", PROMPT, greedy(2)))


def output(*tokens, reason=None, logprobs=None):
    return TokenOutput(
        token_ids=tokens, finish_reason=reason, num_prompt_tokens=1, num_cached_tokens=0, logprobs=logprobs
    )


def test_what_a_slow_reader_missed_is_merged_in_order():
    first, second = (TokenLogprobs(token_id=i, logprob=-float(i)) for i in (1, 2))
    merged = merge(output(1, logprobs=(first,)), output(2, reason=FinishReason.STOP, logprobs=(second,)))
    assert merged == output(1, 2, reason=FinishReason.STOP, logprobs=(first, second))
    assert merge(output(1), output()).logprobs is None

"""The whole process but for the model: loading, ready, drain, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import httpx
import pytest

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.drain import StopSignals
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.serve import Ending, serve
from pagefleet_engine.server.testing import HOST, FakeEngine, free_port, running_server, say, until_listening


class Process:
    """`serve` in a task of its own."""

    def __init__(
        self, engine: FakeEngine, *, loaded: asyncio.Event | None = None, close_timeout_s: float = 10.0, **arguments
    ) -> None:
        self.arguments = EngineArguments(model="none", host=HOST, port=free_port(), **arguments)
        self.signals = StopSignals()

        async def load(_arguments):
            if loaded is not None:
                await loaded.wait()
            return engine

        self.ending = asyncio.create_task(
            serve(
                self.arguments,
                load=load,
                limits=Limits(),
                signals=self.signals,
                environ={},
                close_timeout_s=close_timeout_s,
            )
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.arguments.port}"


async def test_probes_are_answered_while_the_model_loads():
    loaded = asyncio.Event()
    process = Process(FakeEngine(say("x")), loaded=loaded, drain_grace=0)
    await until_listening(process.arguments.port)
    async with httpx.AsyncClient(base_url=process.url) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).text == "loading\n"
        loaded.set()
        while (await client.get("/ready")).status_code != 200:
            pass
    process.signals.received()
    assert await process.ending == Ending(reason="drained", exit_code=0)


async def test_the_queue_is_among_the_limits(caplog):
    caplog.set_level(logging.INFO)
    process = Process(FakeEngine(say("x")), max_num_queued_reqs=7, max_num_queued_tokens=700, drain_grace=0)
    await until_listening(process.arguments.port)
    async with httpx.AsyncClient(base_url=process.url) as client:
        while (await client.get("/ready")).status_code != 200:
            pass
        metrics = (await client.get("/metrics?name[]=pagefleet:request_limits")).text
    process.signals.received()
    await process.ending
    printed = next(message for message in caplog.messages if message.startswith("limits: ")).split()
    for name, value in (("queued_requests", 7), ("queued_tokens", 700)):
        assert f"{name}={value}" in printed
        assert f'pagefleet:request_limits{{limit="{name}",model_name="fake"}} {value:.1f}\n' in metrics


async def test_a_stop_while_loading_does_not_wait_for_the_model():
    process = Process(FakeEngine(say("x")), loaded=asyncio.Event())
    await until_listening(process.arguments.port)
    process.signals.received()
    assert await process.ending == Ending(reason="told to stop while loading", exit_code=0, clean=False)


async def test_a_running_stream_survives_the_drain():
    gate = asyncio.Semaphore(0)
    engine = FakeEngine(say("hello"), gate=gate)
    process = Process(engine, drain_grace=0)
    await until_listening(process.arguments.port)
    async with httpx.AsyncClient(base_url=process.url) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a", "stream": True}))
        await engine.until(lambda: len(engine.running) == 1)
        gate.release()
        process.signals.received()
        while (await client.get("/ready")).text != "refusing\n":
            pass
        for _ in range(9):
            gate.release()
        reply = await asking
    assert reply.text.count('"text"') == 6
    assert reply.text.endswith("data: [DONE]\n\n")
    assert await process.ending == Ending(reason="drained", exit_code=0)


async def test_a_second_signal_cuts_a_running_stream():
    engine = FakeEngine(say("hello"), gate=asyncio.Semaphore(1))
    process = Process(engine)
    await until_listening(process.arguments.port)
    async with (
        httpx.AsyncClient(base_url=process.url) as client,
        client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as reply,
    ):
        process.signals.received()
        process.signals.received()
        text = "".join([piece async for piece in reply.aiter_text()])
    assert text.endswith('"code":"aborted"}}\n\ndata: [DONE]\n\n')
    assert await process.ending == Ending(reason="stopped with requests in flight", exit_code=0)


async def test_a_dead_engine_ends_the_process_with_1():
    engine = FakeEngine(say("x"))
    engine.figures = replace(engine.figures, fatal="the device is gone")
    assert await Process(engine).ending == Ending(reason="the engine has stopped: the device is gone", exit_code=1)


async def test_a_port_in_use_is_a_start_up_error():
    async with running_server(FakeEngine(say("x"))) as server:
        arguments = EngineArguments(model="none", host=HOST, port=server.port)
        with pytest.raises(StartupError, match="Address already in use"):
            await serve(arguments, load=None, limits=Limits(), signals=StopSignals(), environ={})


async def test_a_step_loop_that_does_not_end_is_left_behind():
    class Stuck(FakeEngine):
        async def close(self):
            await asyncio.Event().wait()

    process = Process(Stuck(say("x")), drain_grace=0, close_timeout_s=0.01)
    await until_listening(process.arguments.port)
    process.signals.received()
    ending = await process.ending
    assert (ending.exit_code, ending.clean) == (0, False)

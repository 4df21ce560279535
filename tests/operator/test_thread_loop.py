"""A coroutine in a thread of its own: it ends, it fails, it is cancelled, and the outer loop lives on."""

import asyncio
import gc
import threading

import pytest

from pagefleet_operator.thread_loop import run_in_thread


async def test_it_runs_elsewhere_and_returns():
    seen = []

    async def work():
        seen.append((threading.current_thread().name, asyncio.get_running_loop()))

    await run_in_thread("elsewhere", work())
    ((name, loop),) = seen
    assert name == "elsewhere"
    assert loop is not asyncio.get_running_loop()
    assert loop.is_closed()


async def test_what_it_raises_arrives():
    async def work():
        raise LookupError("inside")

    with pytest.raises(LookupError, match="inside"):
        await run_in_thread("fails", work())


async def test_cancelling_it_cancels_the_coroutine_and_waits_for_it():
    outer, started, seen = asyncio.get_running_loop(), asyncio.Event(), []

    async def work():
        outer.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    task = asyncio.create_task(run_in_thread("waits", work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned up"]


async def test_cancelling_it_before_it_started_is_possible():
    async def work():
        await asyncio.Event().wait()

    task = asyncio.create_task(run_in_thread("early", work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_its_tasks_leave_unread_is_said_in_a_line_without_a_traceback(caplog):
    async def fail():
        raise LookupError("inside")

    async def work():
        forgotten = asyncio.create_task(fail(), name="forgotten")
        await asyncio.wait([forgotten])

    await run_in_thread("leaves", work())
    gc.collect()
    assert caplog.messages == ["Task exception was never retrieved: LookupError('inside')"]
    assert [record.exc_info for record in caplog.records] == [None]

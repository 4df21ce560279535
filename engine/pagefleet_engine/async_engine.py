"""The engine behind an event loop: the step loop runs in a thread of its own, and neither waits for the other.

Commands go to the thread through a queue; outputs come back by `call_soon_threadsafe`, once per step. What a slow
client has not read yet is merged, so a stream never holds more than one answer.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from pagefleet_engine.api import PLAIN, EngineStats, ModelInfo, RequestOptions, RuntimeSettings, Tokenizer, TokenOutput
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import Emission, EngineCore
from pagefleet_engine.errors import EngineDead, EngineError
from pagefleet_engine.request import Request, SamplingParams

log = logging.getLogger(__name__)

_STATS_INTERVAL_S = 0.05
"""Looking at every frame after every step would cost more than a small step itself."""

Command = Callable[[], None]


class Stream:
    """One request's outputs between the step loop and its reader. Belongs to the event loop."""

    def __init__(self) -> None:
        self._pending: TokenOutput | EngineError | None = None
        self._ready = asyncio.Event()

    def put(self, item: TokenOutput | EngineError) -> None:
        """Deliver an output, merged with what was not read yet."""
        if isinstance(item, TokenOutput) and isinstance(self._pending, TokenOutput):
            item = merge(self._pending, item)
        self._pending = item
        self._ready.set()

    async def get(self) -> TokenOutput:
        """Everything since the last call. Raises the error that ended the stream instead of an output."""
        await self._ready.wait()
        self._ready.clear()
        item, self._pending = self._pending, None
        if isinstance(item, TokenOutput):
            return item
        raise item or EngineDead("the stream ended without an output")


def merge(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    """Two consecutive outputs as one."""
    parts = [part for part in (first.logprobs, second.logprobs) if part is not None]
    return replace(
        second,
        prompt_logprobs=first.prompt_logprobs if second.prompt_logprobs is None else second.prompt_logprobs,
        token_ids=first.token_ids + second.token_ids,
        logprobs=tuple(entry for part in parts for entry in part) if parts else None,
    )


class AsyncEngine:
    """`api.Engine` over an `EngineCore`. Construct it, and use it, on the event loop's thread."""

    def __init__(
        self, core: EngineCore, *, model_info: ModelInfo, tokenizer: Tokenizer, precision: Precision = Precision.BF16
    ) -> None:
        self.model_info = model_info
        self.tokenizer = tokenizer
        self._core = core
        self._precision = precision
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, Stream] = {}
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._changes: set[asyncio.Future[None]] = set()
        self._closing = False
        self._ended: str | None = None
        self._stats = core.stats()
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)
        self._thread.start()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, options: RequestOptions = PLAIN
    ) -> AsyncGenerator[TokenOutput, None]:
        """See `api.Engine.generate`."""
        if self._ended is not None:
            raise EngineDead(self._ended)
        if request_id in self._streams:
            raise ValueError(f"request id {request_id} is in use")
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt_ids,
            sampling=params,
            precision=options.precision or self._precision,
            priority=options.priority,
            cache_salt=options.cache_salt,
            allow_demotion=options.allow_demotion,
            fork_of=options.fork_of,
            keep_frames=options.keep_frames,
            constraint=options.constraint,
        )
        stream = self._streams[request_id] = Stream()
        self._commands.put(lambda: self._add(request))
        finished = False
        try:
            while not finished:
                output = await stream.get()
                finished = output.finish_reason is not None
                yield output
        except EngineError:
            finished = True
            raise
        finally:
            del self._streams[request_id]
            if not finished:
                self.abort(request_id)

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda: self._abort(request_id))

    def stats(self) -> EngineStats:
        return self._stats

    async def configure(self, settings: RuntimeSettings) -> None:
        """See `api.Engine.configure`."""
        if self._ended is not None:
            raise EngineDead(self._ended)
        done: asyncio.Future[None] = self._loop.create_future()
        self._changes.add(done)
        done.add_done_callback(self._changes.discard)
        self._commands.put(lambda: self._configure(settings, done))
        await done

    async def close(self) -> None:
        """End the step loop; running requests end with `EngineDead`. Idempotent."""
        if not self._closing:
            self._closing = True
            self._commands.put(lambda: None)
        await asyncio.to_thread(self._thread.join)

    # -- on the step loop's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        reason = "the engine was closed"
        try:
            while not self._closing:
                self._receive(block=not self._core.has_work)
                if self._core.has_work and not self._closing:
                    self._emit(self._core.step())
                self._look()
        except Exception as error:
            # The outermost loop: whatever went wrong in a step, no request can be trusted to go on.
            log.exception("the step loop has died")
            reason = f"the step loop died: {type(error).__name__}: {error}"
            self._stats = replace(self._stats, fatal=reason)
        finally:
            self._core.close()
            self._call_loop(lambda: self._end_all(reason))

    def _receive(self, *, block: bool) -> None:
        """Carry out every command that is there; wait for one when there is nothing else to do.

        Work that comes after idleness is seen before its first step, which may be the one that hangs.
        """
        if block:
            self._look(force=True)
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()
        if block:
            self._look(force=True)

    def _add(self, request: Request) -> None:
        try:
            self._core.add(request)
        except EngineError as error:
            refusal = error
            self._call_loop(lambda: self._deliver(request.request_id, refusal))
        else:
            taken = TokenOutput.empty(num_prompt_tokens=request.num_prompt_tokens)
            self._call_loop(lambda: self._deliver(request.request_id, taken))

    def _abort(self, request_id: str) -> None:
        emission = self._core.abort(request_id)
        if emission is not None:
            self._emit([emission])

    def _configure(self, settings: RuntimeSettings, done: asyncio.Future[None]) -> None:
        refusal: ValueError | None = None
        try:
            self._core.configure(settings)
        except ValueError as error:
            refusal = error
        self._look(force=True)
        self._call_loop(lambda: _settle(done, refusal))

    def _emit(self, emissions: list[Emission]) -> None:
        if emissions:
            self._call_loop(lambda: self._deliver_all(emissions))

    def _look(self, *, force: bool = False) -> None:
        if force or time.monotonic() - self._stats_at_s >= _STATS_INTERVAL_S:
            self._stats = self._core.stats()
            self._stats_at_s = time.monotonic()

    _stats_at_s = 0.0

    def _call_loop(self, callback: Callable[[], None]) -> None:
        """The loop may be gone when the process is on its way out; then nobody listens any more."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # -- on the event loop's thread -----------------------------------------------------------------------------------

    def _deliver_all(self, emissions: list[Emission]) -> None:
        for request_id, output in emissions:
            self._deliver(request_id, output)

    def _deliver(self, request_id: str, item: TokenOutput | EngineError) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put(item)

    def _end_all(self, reason: str) -> None:
        self._ended = reason
        for stream in self._streams.values():
            stream.put(EngineDead(reason))
        for change in self._changes:
            _settle(change, EngineDead(reason))


def _settle(change: asyncio.Future[None], refusal: Exception | None) -> None:
    """Tell whoever asked for the change, unless they have gone or were told already."""
    if change.done():
        return
    if refusal is None:
        change.set_result(None)
    else:
        change.set_exception(refusal)


async def start_engine(arguments: EngineArguments) -> AsyncEngine:
    """Load the model, answer one warm-up token, and start the step loop.

    Loading runs in a worker thread. Raises `StartupError` with one line that names the flag or file and the remedy.
    """
    from pagefleet_engine.startup import build_core

    built = await asyncio.to_thread(build_core, arguments)
    return AsyncEngine(
        built.core, model_info=built.model_info, tokenizer=built.tokenizer, precision=built.model_info.precision
    )

"""A scripted engine behind the real HTTP side, for tests of the server: no model, no scheduler, no torch thread.

Tokens come from a script, at the pace of a gate that the test holds. What it counts is what a test wants to see:
who is running, who was aborted.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from socket import socket

from pagefleet_engine.api import (
    PLAIN,
    Engine,
    EngineStats,
    ModelInfo,
    RequestOptions,
    RuntimeSettings,
    TokenLogprobs,
    TokenOutput,
)
from pagefleet_engine.errors import EngineDead, QueueFull
from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.request import FinishReason, SamplingParams
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.app import create_app
from pagefleet_engine.server.http import HttpServer
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.testing import ByteTokenizer

Script = Callable[[Sequence[int], SamplingParams], Sequence[int]]

HOST = "127.0.0.1"


def say(text: str) -> Script:
    """A script that answers every prompt with `text`, then ends the sequence."""
    return lambda _prompt, _params: [*text.encode(), ByteTokenizer.eos_token_ids[0]]


def echo_prompt(prompt: Sequence[int], _params: SamplingParams) -> Sequence[int]:
    """A script that repeats the prompt."""
    return [*prompt, ByteTokenizer.eos_token_ids[0]]


class FakeEngine:
    """`api.Engine` that plays a script. With a `gate`, each token waits for one release of it."""

    def __init__(
        self,
        script: Script,
        *,
        gate: asyncio.Semaphore | None = None,
        max_running: int = 64,
        max_model_len: int = 512,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self.model_info = ModelInfo(
            id="fake", max_model_len=max_model_len, vocab_size=260, eos_token_ids=self.tokenizer.eos_token_ids
        )
        self.running: set[str] = set()
        self.prompts: list[tuple[int, ...]] = []
        self.sampling: list[SamplingParams] = []
        self.options: list[RequestOptions] = []
        self.settings: list[RuntimeSettings] = []
        self.num_aborted = 0
        self._changed = asyncio.Event()
        self.figures = EngineStats(
            running=0,
            waiting=0,
            swapped=0,
            kv_usage=0.0,
            cpu_kv_usage=0.0,
            cap=max_running,
            capacity=max_running,
            max_model_len=max_model_len,
            frames={"free": 8, "open": 0, "sealed": 0, "in_transfer": 0},
        )
        self.error: str | None = None
        """When set, every request ends by this error after its first token."""
        self.mixed = False
        """What every output says of the precision of its KV."""
        self._script = script
        self._gate = gate
        self._max_running = max_running
        self._closed = asyncio.Event()

    def stats(self) -> EngineStats:
        return replace(self.figures, running=len(self.running), has_work=bool(self.running) or self.figures.has_work)

    def abort(self, request_id: str) -> None:
        self.running.discard(request_id)

    async def configure(self, settings: RuntimeSettings) -> None:
        self.settings.append(settings)
        self.figures = replace(self.figures, cap=settings.cap, max_model_len=settings.max_model_len)

    async def close(self) -> None:
        self._closed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once `condition` holds; looked at whenever a request comes, advances or goes."""
        while not condition():
            await self._changed.wait()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, options: RequestOptions = PLAIN
    ) -> AsyncGenerator[TokenOutput, None]:
        if self._closed.is_set():
            raise EngineDead("closed")
        if len(self.running) >= self._max_running:
            raise QueueFull(f"{len(self.running)} requests wait already", retry_after_s=2.5)
        self.prompts.append(tuple(prompt_ids))
        self.sampling.append(params)
        self.options.append(options)
        self.running.add(request_id)
        finished = False
        try:
            self._tell()
            yield TokenOutput.empty(num_prompt_tokens=len(prompt_ids))
            scores = _prompt_logprobs(prompt_ids, params)
            async for output in self._play(prompt_ids, params):
                finished = output.finish_reason is not None
                yield replace(output, prompt_logprobs=scores)
                scores = None
        finally:
            self.running.discard(request_id)
            self.num_aborted += not finished
            self._tell()

    async def _play(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenOutput, None]:
        if params.max_tokens == 0:
            yield self._output(prompt_ids, (), FinishReason.LENGTH)
            return
        for sent, token in enumerate(self._script(prompt_ids, params), start=1):
            if self._gate is not None:
                await self._next_turn()
            if self._closed.is_set():
                yield self._output(prompt_ids, (), FinishReason.ABORT)
                return
            if token in self.tokenizer.eos_token_ids and not params.ignore_eos:
                stop = None if params.logprobs is None else _logprobs(token, params.logprobs)
                yield replace(self._output(prompt_ids, (), FinishReason.STOP), stop_logprobs=stop)
                return
            if token in params.stop_token_ids:
                yield replace(self._output(prompt_ids, (), FinishReason.STOP), stop_token_id=token)
                return
            reason = FinishReason.LENGTH if sent == params.max_tokens else None
            yield self._output(prompt_ids, (token,), reason, params)
            if reason is not None:
                return
            if self.error is not None:
                yield replace(self._output(prompt_ids, (), FinishReason.ERROR), error=self.error)
                return
        yield self._output(prompt_ids, (), FinishReason.STOP)

    def _output(
        self,
        prompt_ids: Sequence[int],
        token_ids: tuple[int, ...],
        reason: FinishReason | None,
        params: SamplingParams | None = None,
    ) -> TokenOutput:
        wanted = params.logprobs if params is not None else None
        logprobs = None if wanted is None else tuple(_logprobs(token, wanted) for token in token_ids)
        return TokenOutput(
            token_ids=token_ids,
            finish_reason=reason,
            num_prompt_tokens=len(prompt_ids),
            num_cached_tokens=0,
            logprobs=logprobs,
            mixed=self.mixed,
        )

    async def _next_turn(self) -> None:
        assert self._gate is not None
        turn = asyncio.ensure_future(self._gate.acquire())
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({turn, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            turn.cancel()
            closing.cancel()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _logprobs(token: int, wanted: int) -> TokenLogprobs:
    """Made up, and exact in binary: -0.5 for the chosen one, half as much more for each that follows."""
    top = tuple(((token + i) % 256, -0.5 * (i + 1)) for i in range(wanted))
    return TokenLogprobs(token_id=token, logprob=-0.5, top=top)


def _prompt_logprobs(prompt_ids: Sequence[int], params: SamplingParams) -> PromptLogprobs | None:
    """Made up in the same way; every token of the prompt is the most likely one."""
    if params.prompt_logprobs is None:
        return None
    entries = [_logprobs(token, params.prompt_logprobs) for token in prompt_ids[1:]]
    return PromptLogprobs(
        num_top=params.prompt_logprobs,
        token_ids=array("i", prompt_ids[1:]),
        logprobs=array("f", [entry.logprob for entry in entries]),
        ranks=array("i", [1] * len(entries)),
        top_ids=array("i", [token for entry in entries for token, _ in entry.top]),
        top_logprobs=array("f", [logprob for entry in entries for _, logprob in entry.top]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that listens on loopback."""

    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@asynccontextmanager
async def running_server(
    engine: Engine | None,
    *,
    limits: Limits | None = None,
    service: Service | None = None,
    api_keys: ApiKeys | None = None,
) -> AsyncIterator[RunningServer]:
    """The real application on the real HTTP server over `engine`; None leaves it loading."""
    service = service or Service(limits=limits or Limits())
    if engine is not None:
        service.attach(engine)
    port = free_port()
    server = HttpServer(create_app(service, api_keys=api_keys), host=HOST, port=port, limits=service.limits)
    await server.start()
    try:
        await until_listening(port)
        yield RunningServer(service=service, port=port)
    finally:
        if engine is not None:
            await engine.close()
        await server.stop(timeout_s=1.0)
        service.text.close()
        service.structured.close()


async def until_listening(port: int) -> None:
    """Returns once somebody accepts connections on `port`."""
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            await writer.wait_closed()
            return


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port

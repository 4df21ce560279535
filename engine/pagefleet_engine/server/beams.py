"""Runs beam searches on the engine: each step of a beam is a request of one token that forks the step before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from pagefleet_engine.api import RequestOptions, TokenOutput
from pagefleet_engine.errors import EngineDead, QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason, SamplingParams
from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.beam import Beam, BeamSearch, Candidates
from pagefleet_engine.server.failures import raise_on_failure, translate
from pagefleet_engine.server.intake import Intake
from pagefleet_engine.server.job import BeamOptions, Choice, Job
from pagefleet_engine.server.metrics import RequestTimer
from pagefleet_engine.server.service import Service

T = TypeVar("T")


async def run_beams(service: Service, job: Job, options: BeamOptions, intake: Intake) -> AsyncGenerator[Delta, None]:
    """One delta per choice, at the end of its prompt's search. Raises `ApiError`; closing it aborts all of them."""
    prompts = [list(choices) for _, choices in groupby(job.choices, key=lambda choice: choice.leader)]
    searches = [_Search(service, job, choices, options, intake) for choices in prompts]
    for deltas in await _together([search.run() for search in searches]):
        for delta in deltas:
            yield delta


class _Search:
    """One prompt's search. Its requests keep their frames until their children have them."""

    def __init__(
        self, service: Service, job: Job, choices: Sequence[Choice], options: BeamOptions, intake: Intake
    ) -> None:
        self._service = service
        self._job = job
        self._choices = choices
        self._intake = intake
        first = self._first = choices[0]
        ends = () if first.sampling.ignore_eos else service.engine.model_info.eos_token_ids
        self._num_cached = 0
        self._num_requests = 0
        self._began = False
        self._search = BeamSearch(
            width=options.width,
            num_prompt=len(first.prompt_ids),
            max_tokens=first.sampling.max_tokens or 1,
            stop_token_ids=frozenset((*ends, *first.sampling.stop_token_ids)),
            length_penalty=options.length_penalty,
        )
        self._sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=2 * options.width)
        pick = first.pick
        self._options = RequestOptions(
            precision=pick.precision,
            priority=job.priority,
            cache_salt=job.cache_salt,
            allow_demotion=pick.allow_demotion,
            keep_frames=True,
        )

    async def run(self) -> list[Delta]:
        """The answers. Raises `ApiError`."""
        timer = RequestTimer(self._service.metrics, arrived_at=self._job.arrived_at_s)
        reason = FinishReason.ABORT
        try:
            await self._advance_to_the_end(timer)
            reason = FinishReason.STOP
        except (RequestRefused, QueueFull, EngineDead) as error:
            self._intake.is_refused = not (isinstance(error, EngineDead) and self._began)
            raise translate(error) from error
        finally:
            if not self._intake.is_refused:
                timer.finished(reason, now=self._service.monotonic())
            elif not self._began:
                self._service.routes.give_back(self._first.pick)
        return [self._delta(choice, beam) for choice, beam in zip(self._choices, self._beams(), strict=False)]

    async def _advance_to_the_end(self, timer: RequestTimer) -> None:
        kept: list[str] = []
        try:
            while not self._search.is_done():
                parents, ids = kept, [self._new_id() for _ in self._search.live]
                kept = parents + ids
                steps = [
                    self._step(request_id, beam, parents[beam.parent] if parents else None)
                    for request_id, beam in zip(ids, self._search.live, strict=True)
                ]
                found = await _together(steps)
                timer.tokens(1, now=self._service.monotonic())
                if not parents:
                    self._began = True
                    self._service.metrics.count_route(self._first.pick.route, self._first.pick.precision)
                self._search.advance(found)
                self._release(parents)
                kept = ids
        finally:
            self._release(kept)

    async def _step(self, request_id: str, beam: Beam, parent: str | None) -> Candidates:
        """The most likely tokens after this beam."""
        prompt = (*self._first.prompt_ids, *beam.token_ids)
        options = replace(self._options, fork_of=parent)
        outputs = self._service.engine.generate(request_id, prompt, self._sampling, options)
        last: TokenOutput | None = None
        async with aclosing(outputs):
            async for output in outputs:
                last = output
        assert last is not None
        raise_on_failure(last, last.finish_reason or FinishReason.ABORT)
        if parent is None:
            self._num_cached = last.num_cached_tokens
        return last.logprobs[0].top if last.logprobs else ()

    def _new_id(self) -> str:
        self._num_requests += 1
        return f"{self._job.key}-{self._first.index}-beam-{self._num_requests}"

    def _release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._service.engine.abort(request_id)

    def _beams(self) -> list[Beam]:
        return self._search.best(len(self._choices))

    def _delta(self, choice: Choice, beam: Beam) -> Delta:
        detokenizer = self._service.engine.tokenizer.detokenizer(skip_special_tokens=self._job.skip_special_tokens)
        return Delta(
            index=choice.index,
            text=detokenizer.push(beam.token_ids) + detokenizer.flush(),
            num_tokens=len(beam.token_ids),
            token_ids=tuple(beam.token_ids) if self._job.returns_token_ids else (),
            finish_reason=beam.finish_reason,
            num_cached_tokens=self._num_cached if choice is self._first else 0,
        )


async def _together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first error cancels the others, and they have ended when it is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

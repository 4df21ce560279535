"""Runs the choices of a job on the engine and merges what they say, in the order in which it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

from pagefleet_engine.api import Detokenizer, RequestOptions
from pagefleet_engine.errors import EngineDead, QueueFull, RequestRefused
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.answer import Answer, Delta
from pagefleet_engine.server.beams import run_beams
from pagefleet_engine.server.errors import internal
from pagefleet_engine.server.failures import raise_on_failure, translate
from pagefleet_engine.server.intake import Intake
from pagefleet_engine.server.job import Choice, Job
from pagefleet_engine.server.metrics import RequestTimer
from pagefleet_engine.server.prompt_scores import PromptScores
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.structured_watch import Watch
from pagefleet_engine.text.detokenizer import IncrementalDetokenizer


async def run_job(service: Service, job: Job, intake: Intake) -> AsyncGenerator[Delta, None]:
    """Deltas of all choices. Raises `ApiError`; closing it, or any choice's error, aborts all of them."""
    if job.beam is not None:
        async with aclosing(run_beams(service, job, job.beam, intake)) as deltas:
            async for delta in deltas:
                yield delta
        return
    scores = PromptScores(job)
    choices = [_run_choice(service, job, choice, scores, intake) for choice in job.choices]
    if len(choices) == 1:
        async with aclosing(choices[0]) as deltas:
            async for delta in deltas:
                yield delta
        return
    # What a slow reader leaves behind is merged in the engine's streams, as it is for a single choice.
    queue: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue(maxsize=len(choices))
    tasks = [asyncio.create_task(_pump(choice, queue)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(deltas: AsyncGenerator[Delta, None], queue: asyncio.Queue[Delta | BaseException | None]) -> None:
    """Errors travel through the queue to whoever reads it."""
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                await queue.put(delta)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)


async def _run_choice(
    service: Service, job: Job, choice: Choice, scores: PromptScores, intake: Intake
) -> AsyncGenerator[Delta, None]:
    engine = service.engine
    answer = Answer(
        choice,
        _detokenizer(service, job),
        include_stop=job.include_stop,
        keeps_token_ids=job.returns_token_ids,
    )
    timer = RequestTimer(service.metrics, arrived_at=job.arrived_at_s)
    watch = Watch(
        structure=job.structure,
        work=service.structured,
        pick=choice.pick,
        count=service.metrics.count_structured,
        new_digits=lambda: uuid4().hex,
    )
    taken = began = False
    reason = FinishReason.ABORT  # what is true when nobody gets to say otherwise
    sampling = choice.sampling
    if job.keep is not None and sampling.logprobs is None:
        sampling = replace(sampling, logprobs=0)  # the candidates are ranked by them
    outputs = engine.generate(f"{job.key}-{choice.index}", choice.prompt_ids, sampling, request_options(job, choice))
    try:
        async with aclosing(outputs):
            async for output in outputs:
                if not taken:
                    taken = True
                    intake.took_one()
                if output.is_empty:
                    continue
                if not began and choice.index == choice.leader:
                    service.metrics.count_route(choice.pick.route, choice.pick.precision)
                began = True
                timer.tokens(len(output.token_ids), now=service.monotonic())
                delta = answer.add(output)
                reason = delta.finish_reason or reason
                raise_on_failure(output, reason)
                delta = await scores.complete(choice, delta)
                delta = await watch.see(delta, mixed=output.mixed)
                if not delta.is_empty or delta.num_tokens:
                    yield delta
                if delta.finish_reason is not None:
                    return
    except (RequestRefused, QueueFull, EngineDead) as error:
        intake.is_refused = not (isinstance(error, EngineDead) and taken)
        raise translate(error) from error
    finally:
        if intake.is_refused and not began:
            watch.refused()
            if choice.index == choice.leader:
                service.routes.give_back(choice.pick)
        else:
            timer.finished(reason, now=service.monotonic())
        watch.close()
    raise internal("the engine ended this request without a reason")


def _detokenizer(service: Service, job: Job) -> Detokenizer:
    """Of an answer that may call tools: special tokens that are part of a call stay in its text."""
    tokenizer = service.engine.tokenizer
    kept = frozenset() if job.structure.tools is None else service.tool_form.shown_ids
    if not kept or not job.skip_special_tokens:
        return tokenizer.detokenizer(skip_special_tokens=job.skip_special_tokens)
    hidden = tokenizer.special_token_ids - kept
    return IncrementalDetokenizer(lambda token_id: b"" if token_id in hidden else tokenizer.token_bytes(token_id))


def request_options(job: Job, choice: Choice) -> RequestOptions:
    """How the engine is to treat this choice: all choices of a prompt share the frames of its first one."""
    return RequestOptions(
        precision=choice.pick.precision,
        priority=job.priority,
        cache_salt=job.cache_salt,
        allow_demotion=choice.pick.allow_demotion,
        fork_of=None if choice.index == choice.leader else f"{job.key}-{choice.leader}",
        constraint=job.structure.constraint(validates=choice.pick.validates),
    )

"""The step loop without its thread: take a request, plan a step, execute it, say what it brought.

Not thread-safe; belongs to whoever calls `step`. Time is an argument. An exception out of `step` means that the engine
cannot go on; a request's own failure is an output like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pagefleet_engine.api import EngineStats, RuntimeSettings, TokenLogprobs, TokenOutput
from pagefleet_engine.errors import QueueFull, RequestRefused
from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.request import FinishReason, Request, SamplingError
from pagefleet_engine.runtime.executor import Executor
from pagefleet_engine.runtime.sampler import Sampled
from pagefleet_engine.scheduling.limits import WaitingQueueFull
from pagefleet_engine.scheduling.output import RequestUpdate
from pagefleet_engine.scheduling.scheduler import Scheduler

_RATE_WINDOW = 64
"""Requests over whose ends the drain rate is measured."""
_RETRY_BOUNDS_S = (1.0, 60.0)


class Emission(NamedTuple):
    """One request's output of a step."""

    request_id: str
    output: TokenOutput


@dataclass(slots=True)
class DrainRate:
    """How fast requests end, from their last `_RATE_WINDOW` ends."""

    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_WINDOW))

    def retry_after_s(self, num_waiting: int, now_s: float) -> float:
        """Seconds until `num_waiting` requests will have left the queue, within bounds."""
        low, high = _RETRY_BOUNDS_S
        if len(self.ends_s) < 2 or now_s <= self.ends_s[0]:
            return low
        per_second = len(self.ends_s) / (now_s - self.ends_s[0])
        return min(max(num_waiting / per_second, low), high)


class EngineCore:
    """Scheduler and executor, and what is known about their requests."""

    def __init__(
        self, scheduler: Scheduler, executor: Executor, *, vocab_size: int, monotonic_s: Callable[[], float]
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._vocab_size = vocab_size
        self._monotonic_s = monotonic_s
        self._live: dict[str, Request] = {}
        self._prompt_logprobs: dict[str, PromptLogprobs] = {}
        """What is known of prompts that are not complete, or whose requests have got nothing yet."""
        self._rate = DrainRate()
        self._failed_total = 0
        self._step_counter = 0
        self._last_step_s = monotonic_s()

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request. Raises `RequestRefused` or `QueueFull`; nothing of it is kept then."""
        self._check_ids(request)
        try:
            self.scheduler.add(request)
        except WaitingQueueFull as full:
            wait_s = self._rate.retry_after_s(full.num_waiting, self._monotonic_s())
            raise QueueFull(f"{full}: try again in {wait_s:.0f} s", retry_after_s=wait_s) from None
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        self._live[request.request_id] = request
        if request.sampling.prompt_logprobs is not None:
            num_top = min(request.sampling.prompt_logprobs, self._vocab_size)
            self._prompt_logprobs[request.request_id] = PromptLogprobs(num_top=num_top)

    def check(self, request: Request) -> None:
        """Raises `RequestRefused` for a request that `add` would refuse however empty the queue is; keeps nothing."""
        self._check_ids(request)
        try:
            self.scheduler.check(request)
        except ValueError as error:
            raise RequestRefused(str(error)) from error

    def abort(self, request_id: str) -> Emission | None:
        """End a request in whatever state it is; None when it has ended already. Frames kept for forks are released."""
        request = self._live.pop(request_id, None)
        self._prompt_logprobs.pop(request_id, None)
        self.scheduler.abort(request_id)
        if request is None:
            return None
        return Emission(request_id, _output(request, (), FinishReason.ABORT))

    def step(self) -> list[Emission]:
        """Plan and execute one step; the outputs of the requests that got something or ended."""
        output = self.scheduler.schedule()
        results = {} if output.is_empty else {r.request_id: r for r in self._executor.execute(output)}
        sampled = {r.request_id: (r.token_id,) for r in results.values() if r.token_id is not None}
        failed = [r.request_id for r in results.values() if r.error is not None]
        complete = [r.request_id for r in results.values() if r.is_complete]
        for result in results.values():
            self._keep_prompt_logprobs(result)
        updates = self.scheduler.update(output, sampled, failed, complete)
        self._step_counter += 1
        self._last_step_s = self._monotonic_s()
        emissions = [self._emit(update, results.get(update.request_id)) for update in updates]
        return [emission for emission in emissions if emission is not None]

    def stats(self) -> EngineStats:
        """One look at everything; takes time in proportion to the frames held."""
        found = self.scheduler.stats()
        return EngineStats(
            running=found.running,
            waiting=found.waiting,
            swapped=found.swapped,
            kv_usage=found.usage,
            cpu_kv_usage=found.host_usage,
            cap=found.cap,
            capacity=found.capacity,
            max_model_len=found.max_model_len,
            frames={str(state): count for state, count in found.frames.items()},
            sealed_frames={str(precision): count for precision, count in found.sealed_frames.items()},
            preemptions_total=found.counters.preemptions,
            swaps_total=found.counters.swaps,
            resumes_total=found.counters.resumes,
            recomputes_total=found.counters.recomputes,
            evicted_frames_total=found.memory.evicted,
            demoted_frames_total=found.memory.demoted,
            prefix_query_tokens_total=found.memory.prefix_query_tokens,
            prefix_hit_tokens_total=found.memory.prefix_hit_tokens + found.memory.prefix_host_hit_tokens,
            prefix_host_hit_tokens_total=found.memory.prefix_host_hit_tokens,
            prompt_tokens_total=found.counters.prompt_tokens,
            generation_tokens_total=found.counters.generated_tokens,
            failed_requests_total=self._failed_total,
            step_counter=self._step_counter,
            last_step_monotonic_s=self._last_step_s,
            has_work=self.has_work,
        )

    def configure(self, settings: RuntimeSettings) -> None:
        """Change the live settings. Raises `ValueError`, with nothing changed, for one out of range."""
        started = self.scheduler.config
        for name, value, highest in (
            ("cap", settings.cap, started.max_num_seqs),
            ("max_model_len", settings.max_model_len, started.max_model_len),
            ("max_num_batched_tokens", settings.max_num_batched_tokens, started.max_num_batched_tokens),
        ):
            if not 1 <= value <= highest:
                raise ValueError(f"{name} is {value}: must be 1 to {highest}")
        self.scheduler.set_cap(settings.cap)
        self.scheduler.set_max_model_len(settings.max_model_len)
        self.scheduler.set_token_budget(settings.max_num_batched_tokens)

    def close(self) -> None:
        self._executor.close()

    def _check_ids(self, request: Request) -> None:
        worst = max(request.prompt_token_ids, default=0), min(request.prompt_token_ids, default=0)
        if worst[0] >= self._vocab_size or worst[1] < 0:
            wrong = worst[0] if worst[0] >= self._vocab_size else worst[1]
            last = self._vocab_size - 1
            raise RequestRefused(f"prompt has token id {wrong}: the model's ids are 0 to {last}", param="prompt")
        try:
            request.sampling.check_vocabulary(self._vocab_size)
        except SamplingError as error:
            raise RequestRefused(str(error), param=error.param) from error

    def _keep_prompt_logprobs(self, result: Sampled) -> None:
        """Chunks of a prompt follow one another, so their scores do."""
        known = self._prompt_logprobs.get(result.request_id)
        if known is not None and result.prompt_logprobs is not None:
            known.extend(result.prompt_logprobs)

    def _emit(self, update: RequestUpdate, result: Sampled | None) -> Emission | None:
        request = self._live.get(update.request_id)
        if request is None:
            return None
        reason = update.finish_reason
        if reason is not None:
            del self._live[update.request_id]
            self._rate.ends_s.append(self._last_step_s)
            self._failed_total += reason is FinishReason.ERROR
        logprobs = None
        if result is not None and result.logprobs is not None:
            logprobs = (result.logprobs,) if update.new_token_ids else ()
        scored = self._prompt_logprobs.pop(update.request_id, None)
        prompt_logprobs = None if reason is FinishReason.ERROR else scored
        output = _output(request, update.new_token_ids, reason, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        if result is not None and update.stop_token_id is not None:
            output = replace(output, stop_token_id=update.stop_token_id, stop_logprobs=result.logprobs)
        if result is not None and result.error is not None:
            output = replace(output, error=result.error, is_client_error=result.is_client_error)
        return Emission(update.request_id, output)


def _output(
    request: Request,
    token_ids: Sequence[int],
    reason: FinishReason | None,
    *,
    logprobs: tuple[TokenLogprobs, ...] | None = None,
    prompt_logprobs: PromptLogprobs | None = None,
) -> TokenOutput:
    return TokenOutput(
        token_ids=tuple(token_ids),
        finish_reason=reason,
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_prompt_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        mixed=request.mixed,
    )

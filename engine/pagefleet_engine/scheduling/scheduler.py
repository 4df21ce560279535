"""The scheduler: takes requests, plans one step at a time, and learns what the step brought.

    scheduler.add(request)
    output = scheduler.schedule()
    updates = scheduler.update(output, tokens)

One step is in flight at a time. Whatever ends a request while one is, ends it when that step is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pagefleet_engine.contract.kv import Layout
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.memory.prefix_cache import keyed_digest
from pagefleet_engine.request import FinishReason, Request, RequestState
from pagefleet_engine.scheduling.books import Books, queued_tokens
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.limits import check_precision_fits, check_queue, longest_total
from pagefleet_engine.scheduling.output import RequestUpdate, ScheduleOutput
from pagefleet_engine.scheduling.planner import StepPlanner
from pagefleet_engine.scheduling.pressure import Pressure
from pagefleet_engine.scheduling.stats import Counters, SchedulerStats

MAX_PRIORITY = 100


class Scheduler:
    """Continuous batching over a paged KV memory. Not thread-safe: it belongs to the step loop."""

    def __init__(self, config: SchedulerConfig, layout: Layout) -> None:
        self.config = config
        self.memory = KVMemory(
            num_frames=config.num_frames,
            layout=layout,
            num_slots=config.num_host_frames,
            digest=keyed_digest(config.cache_key) if config.enable_prefix_caching else None,
            model=config.model,
        )
        self._books = Books(self.memory, aging_steps=config.aging_steps)
        self._counters = Counters()
        self._cap = config.initial_cap or config.max_num_seqs
        self._max_model_len = config.max_model_len
        self._token_budget = config.max_num_batched_tokens
        self._step = 0
        self._arrivals = 0
        self._in_flight: ScheduleOutput | None = None
        self._ending: dict[str, FinishReason] = {}

    @property
    def has_work(self) -> bool:
        """Some request has not ended; parked ones have."""
        return len(self._books.requests) > len(self._books.parked)

    @property
    def requests(self) -> Mapping[str, Request]:
        """Those that have not ended, by id. For looking only."""
        return self._books.requests

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises `RequestRefused` for one that can never be served, `WaitingQueueFull` when there is no place, and
        ValueError for an id that is in use.
        """
        max_total_tokens = self.check(request)
        books = self._books
        check_queue(books.num_waiting, books.num_waiting_tokens, queued_tokens(request), self.config)
        request.max_total_tokens = max_total_tokens
        self._arrivals += 1
        request.arrival, request.arrival_step = self._arrivals, self._step
        request.rank = (request.priority, request.arrival)
        self._queue(request)

    def check(self, request: Request) -> int:
        """Raises what `add` would, a full queue apart, and keeps nothing. Tokens of prompt plus longest answer."""
        if request.request_id in self._books.requests:
            raise ValueError(f"request id {request.request_id} is in use")
        if not -MAX_PRIORITY <= request.priority <= MAX_PRIORITY:
            raise ValueError(f"priority is {request.priority}: must be -{MAX_PRIORITY} to {MAX_PRIORITY}")
        return longest_total(
            request,
            max_model_len=self._max_model_len,
            num_frames=self.config.num_frames,
            sizes=self.memory.sizes,
        )

    def schedule(self) -> ScheduleOutput:
        """Plan the next step. Raises RuntimeError while one is in flight."""
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.step} has not been updated yet")
        self._step += 1
        pressure = Pressure(
            self._books,
            self.memory,
            self._counters,
            step=self._step,
            protected_steps=self.config.protected_steps,
            may_demote=not self.config.batch_invariant,
        )
        planner = StepPlanner(
            self._books,
            self.memory,
            self._counters,
            pressure,
            step=self._step,
            token_budget=self._token_budget,
            cap=self._cap,
        )
        self._in_flight = planner.plan()
        return self._in_flight

    def update(
        self,
        output: ScheduleOutput,
        sampled: Mapping[str, Sequence[int]],
        failed: Collection[str] = (),
        complete: Collection[str] = (),
    ) -> list[RequestUpdate]:
        """The step has been computed: `sampled` has the new tokens of every request that samples.

        `failed` names requests that the runner could not serve; they end with an error and share nothing. `complete`
        names those whose constraint lets nothing follow their new token; they end here. Requests that have been aborted
        while the step ran are silently released, and their tokens dropped.
        """
        if output is not self._in_flight:
            raise RuntimeError(f"step {output.step} is not the one in flight")
        requests = [self._books.requests[scheduled.request_id] for scheduled in output.requests]
        for request, scheduled in zip(requests, output.requests, strict=True):
            self.memory.commit(request)
            if scheduled.prompt_rows:
                request.num_scored = scheduled.prompt_rows.stop
        self.memory.settle()
        self._in_flight = None
        updates = []
        for request, scheduled in zip(requests, output.requests, strict=True):
            if request.request_id in self._ending:
                continue
            if request.request_id in failed:
                self.fail(request.request_id)
                updates.append(_update(request, FinishReason.ERROR))
            elif scheduled.samples:
                self._fork_unborn(request)
                is_complete = request.request_id in complete
                updates.append(self._append(request, sampled[request.request_id], is_complete=is_complete))
        ending, self._ending = self._ending, {}
        for request_id, reason in ending.items():
            self.finish(request_id, reason)
        return updates

    def abort(self, request_id: str) -> None:
        """The client has gone. Allowed in every state; unknown ids are ignored."""
        self.finish(request_id, FinishReason.ABORT)

    def fail(self, request_id: str) -> None:
        """End a request by an error of its own."""
        self.finish(request_id, FinishReason.ERROR)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request from outside, for example because the server found a stop string. A parked one is released."""
        request = self._books.requests.get(request_id)
        if request is None:
            return
        if self._in_flight is not None:
            self._ending.setdefault(request_id, reason)
            return
        if reason is FinishReason.ERROR:
            self.memory.forget(request)
        may_park = request.keep_frames and reason in (FinishReason.STOP, FinishReason.LENGTH)
        if may_park and request.state is not RequestState.PARKED:
            self._books.park(request)
        else:
            self._books.release(request)

    def set_cap(self, cap: int) -> None:
        """Change how many requests may run at once. Lowering it aborts nobody: the running ones drain down to it."""
        if not 1 <= cap <= self.config.max_num_seqs:
            raise ValueError(f"cap is {cap}: must be 1 to {self.config.max_num_seqs}")
        self._cap = cap

    def set_max_model_len(self, max_model_len: int) -> None:
        """Change the longest prompt plus answer of requests that arrive from now on."""
        if not 1 <= max_model_len <= self.config.max_model_len:
            raise ValueError(f"max_model_len is {max_model_len}: must be 1 to {self.config.max_model_len}")
        self._max_model_len = max_model_len

    def set_token_budget(self, max_num_batched_tokens: int) -> None:
        """Change how many tokens a step may compute, up to what the engine was started with."""
        if not 1 <= max_num_batched_tokens <= self.config.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens is {max_num_batched_tokens}: must be 1 to {self.config.max_num_batched_tokens}"
            )
        self._token_budget = max_num_batched_tokens

    def set_precision(self, request_id: str, precision: Precision) -> None:
        """Groups of this request that begin from now on are kept in `precision`; unknown ids are ignored.

        Routes act on new requests only, so the server never calls this. Raises `RequestTooLong` when the
        request would no longer fit into the pool; it then stays as it is.
        """
        request = self._books.requests.get(request_id)
        if request is None:
            return
        check_precision_fits(request, precision, num_frames=self.config.num_frames, sizes=self.memory.sizes)
        request.precision = precision
        request.table.lookup_keys.clear()

    def stats(self) -> SchedulerStats:
        """One look at the scheduler, cheap enough for every step."""
        books, pool = self._books, self.memory.pool
        return SchedulerStats(
            running=len(books.running),
            waiting=books.num_waiting,
            swapped=len(books.swapped),
            parked=len(books.parked),
            cap=self._cap,
            capacity=self.config.max_num_seqs,
            max_model_len=self._max_model_len,
            usage=pool.num_held / pool.num_frames,
            frames=pool.counts(),
            sealed_frames=dict(pool.sealed),
            host_usage=self._host_usage(),
            counters=replace(self._counters),
            memory=replace(self.memory.counters),
        )

    def check_invariants(self) -> None:
        """Raises `FrameError` when the books and the memory disagree."""
        self.memory.check_invariants(self._books.requests.values())

    def _queue(self, request: Request) -> None:
        """Into the queue, or beside it while the request that it is a fork of still computes the shared prompt."""
        parent = self._books.requests.get(request.fork_of) if request.fork_of is not None else None
        if parent is not None and parent is not request and self._is_computing(parent):
            self._books.wait_for_parent(request, parent.request_id)
            return
        if parent is not None:
            self._fork(parent, request)
        self._books.wait(request)

    def _is_computing(self, parent: Request) -> bool:
        """It has not come to the end of its prompt, or may be writing frames at this moment."""
        if parent.state is RequestState.PARKED:
            return False
        return self._in_flight is not None or not parent.num_output_tokens

    def _fork_unborn(self, parent: Request) -> None:
        """The parent has computed its prompt: its forks can share it from now on."""
        for child in self._books.take_unborn(parent.request_id):
            self._fork(parent, child)
            self._books.wait(child)

    def _fork(self, parent: Request, child: Request) -> None:
        self.memory.fork(parent, child)
        self._counters.forks += child.num_computed > 0

    def _host_usage(self) -> float:
        held = sum(1 for request in self._books.swapped for _ in request.table.held_slots())
        return held / self.config.num_host_frames if self.config.num_host_frames else 0.0

    def _append(self, request: Request, tokens: Sequence[int], *, is_complete: bool) -> RequestUpdate:
        new: list[int] = []
        if request.num_tokens >= request.max_total_tokens:  # only the prompt was to be computed
            return self._end(request, new, FinishReason.LENGTH, None)
        for token in tokens:
            if self._stops(request, token) or (is_complete and token in self.config.eos_token_ids):
                return self._end(request, new, FinishReason.STOP, token)
            request.token_ids.append(token)
            new.append(token)
            self._counters.generated_tokens += 1
            if request.num_tokens >= request.max_total_tokens:
                return self._end(request, new, FinishReason.STOP if is_complete else FinishReason.LENGTH, None)
        if is_complete:
            return self._end(request, new, FinishReason.STOP, None)
        return _update(request, None, new)

    def _stops(self, request: Request, token: int) -> bool:
        sampling = request.sampling
        if request.num_output_tokens < sampling.min_tokens:
            return False
        return token in sampling.stop_token_ids or (not sampling.ignore_eos and token in self.config.eos_token_ids)

    def _end(self, request: Request, new: list[int], reason: FinishReason, stop: int | None) -> RequestUpdate:
        self.finish(request.request_id, reason)
        return _update(request, reason, new, stop)


def _update(
    request: Request, reason: FinishReason | None, new: Sequence[int] = (), stop: int | None = None
) -> RequestUpdate:
    return RequestUpdate(
        request_id=request.request_id, new_token_ids=tuple(new), stop_token_id=stop, finish_reason=reason
    )

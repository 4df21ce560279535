"""One step: who computes how many tokens, who has to leave for it, who may come.

Running requests come first, in the order of (priority, arrival). One that lacks frames takes them from the last in
that order which has not been planned in this step yet; nobody is preempted for the sake of an admission.
"""

from __future__ import annotations

from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.memory.writes import Piece
from pagefleet_engine.request import Request
from pagefleet_engine.scheduling.books import Books
from pagefleet_engine.scheduling.output import Context, ScheduledRequest, ScheduleOutput
from pagefleet_engine.scheduling.stats import Counters


class StepPlanner:
    """Plans one step and is then done with. Changes the books, the memory and the counters."""

    def __init__(
        self, books: Books, memory: KVMemory, counters: Counters, *, step: int, token_budget: int, cap: int
    ) -> None:
        self._books = books
        self._memory = memory
        self._counters = counters
        self._step = step
        self._token_budget = token_budget
        self._cap = cap
        self._tokens_left = token_budget
        self._preempted = False
        self._planned: list[ScheduledRequest] = []

    def plan(self) -> ScheduleOutput:
        """The step. Raises RuntimeError when requests run and none can compute, which is a bug."""
        self._plan_running()
        if self._books.running and not self._planned:
            raise RuntimeError("no running request can compute, although each of them fits into the pool")
        if not self._preempted:
            self._admit()
        moves = self._memory.collect_moves()
        ended, self._books.ended = tuple(self._books.ended), []
        return ScheduleOutput(
            step=self._step,
            copy=tuple(moves.copy),
            requests=tuple(self._planned),
            num_tokens=self._token_budget - self._tokens_left,
            ended=ended,
        )

    def _plan_running(self) -> None:
        running = self._books.running
        decodes_left = sum(1 for request in running if request.num_uncomputed == 1)
        index = 0
        while index < len(running) and self._tokens_left:
            request = running[index]
            num_new = request.num_uncomputed
            if num_new == 1:
                decodes_left -= 1
            else:
                # Every decode behind gets its token before a prompt gets the rest.
                num_new = min(num_new, self._tokens_left - decodes_left)
            if num_new > 0:
                self._plan_request(request, num_new, index)
            index += 1

    def _plan_request(self, request: Request, num_new: int, index: int) -> None:
        pieces = self._memory.plan(request, num_new)
        needed = self._memory.frames_needed(request, pieces)
        if needed > self._memory.pool.num_free and not self._make_free(needed, index):
            num_new = self._memory.longest_fit(request, pieces)
            if not num_new:
                return
            pieces = self._memory.plan(request, num_new)
        self._compute(request, pieces, num_new)

    def _compute(self, request: Request, pieces: list[Piece], num_new: int) -> None:
        table, known = request.table, request.token_ids
        start = table.num_tokens
        self._memory.write(request, pieces)
        self._tokens_left -= num_new
        self._planned.append(
            ScheduledRequest(
                request.request_id,
                known[start : start + num_new],
                start,
                Context(table, len(table.sealed)),
                table.pending,
                start + num_new == len(known),
                request.sampling,
                known,
                len(known),
                len(request.prompt_token_ids),
            )
        )

    def _make_free(self, num_frames: int, index: int) -> bool:
        """Free frames for the running request at `index`, at the cost of those behind it if need be."""
        while not self._memory.make_free(num_frames):
            victim = next(self._books.running.after(index), None)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _preempt(self, victim: Request) -> None:
        self._preempted = True
        self._counters.preemptions += 1
        self._counters.recomputes += 1
        self._memory.release(victim)
        self._books.wait(victim)

    def _admit(self) -> None:
        waiting, running = self._books.waiting, self._books.running
        reserved = sum(self._frames_still_to_come(request) for request in running)
        while waiting and self._tokens_left and len(running) < self._cap:
            request = waiting[0]
            # One frame for each that runs already, else a newcomer would be preempted again at once.
            needed = self._memory.frames_to_finish_prompt(request) + reserved + len(running)
            if needed > self._memory.num_available:
                return
            self._books.run(request)
            self._begin(request)
            reserved += self._frames_still_to_come(request)

    def _begin(self, request: Request) -> None:
        pieces = self._memory.plan(request, min(request.num_uncomputed, self._tokens_left))
        if not self._memory.make_free(self._memory.frames_needed(request, pieces)):
            pieces = self._memory.plan(request, self._memory.longest_fit(request, pieces))
        self._compute(request, pieces, sum(piece.num_new for piece in pieces))

    def _frames_still_to_come(self, request: Request) -> int:
        """Frames that the rest of a prompt will take after this step."""
        planned = request.num_computed + sum(write.num_new for write in request.table.pending)
        if planned == request.num_tokens:
            return 0
        sizes, precision = self._memory.sizes, request.precision
        return max(0, sizes.frames(request.num_tokens, precision) - sizes.frames(planned, precision))

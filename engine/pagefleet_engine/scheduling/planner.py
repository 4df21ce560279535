"""One step: who computes how many tokens, and who may come.

Running requests come first, in the order of (priority, arrival), then swapped ones, then new ones; a new one of better
rank than the swapped ones comes before them. Nobody is preempted for the sake of a request that does not run yet, and
nobody comes in a step in which somebody had to leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.memory.writes import Piece
from pagefleet_engine.request import Request, RequestState
from pagefleet_engine.scheduling.books import Books
from pagefleet_engine.scheduling.output import Context, ScheduledRequest, ScheduleOutput, SwapOut
from pagefleet_engine.scheduling.pressure import Pressure
from pagefleet_engine.scheduling.stats import Counters


class StepPlanner:
    """Plans one step and is then done with. Changes the books, the memory and the counters."""

    def __init__(
        self,
        books: Books,
        memory: KVMemory,
        counters: Counters,
        pressure: Pressure,
        *,
        step: int,
        token_budget: int,
        cap: int,
    ) -> None:
        self._books = books
        self._memory = memory
        self._counters = counters
        self._pressure = pressure
        self._step = step
        self._token_budget = token_budget
        self._cap = cap
        self._tokens_left = token_budget
        self._planned: list[ScheduledRequest] = []

    def plan(self) -> ScheduleOutput:
        """The step. Raises RuntimeError when requests run and none can compute, which is a bug."""
        self._plan_running(spare_protected=True)
        if self._books.running and not self._planned:
            self._plan_running(spare_protected=False)
        if self._books.running and not self._planned:
            self._plan_alone(self._books.running[0])
        someone_waits = self._books.swapped or self._books.waiting
        if someone_waits and not self._pressure.has_preempted:
            reserved = sum(self._frames_still_to_come(request) for request in self._books.running)
            self._bring(reserved)
        return self._finish()

    def _finish(self) -> ScheduleOutput:
        moves = self._memory.collect_moves()
        ended, self._books.ended = tuple(self._books.ended), []
        return ScheduleOutput(
            step=self._step,
            demote=tuple(moves.demote),
            swap_out=tuple(SwapOut(frame, slot) for slot, frame in moves.swap_out.items()),
            swap_in=tuple(moves.swap_in),
            copy=tuple(moves.copy),
            requests=tuple(self._planned),
            num_tokens=self._token_budget - self._tokens_left,
            ended=ended,
        )

    # Those who run

    def _plan_running(self, *, spare_protected: bool) -> None:
        running = self._books.running
        decodes_left = sum(1 for request in running if request.num_uncomputed == 1)
        index = 0
        # Victims leave from behind, so an index stays valid.
        while index < len(running) and self._tokens_left:
            request = running[index]
            num_new = request.num_uncomputed
            if num_new == 1:
                decodes_left -= 1
            else:
                # Every decode behind gets its token before a prompt gets the rest.
                num_new = min(num_new, self._tokens_left - decodes_left)
            if num_new > 0:
                self._plan_request(request, num_new, index, spare_protected=spare_protected)
            index += 1

    def _plan_request(self, request: Request, num_new: int, index: int, *, spare_protected: bool) -> None:
        pieces = self._memory.plan(request, num_new)
        needed = self._memory.frames_needed(request, pieces)
        if needed > self._memory.pool.num_free and not self._pressure.make_free(
            needed, index, spare_protected=spare_protected
        ):
            self._counters.stalls += not self._compute_what_fits(request, pieces)
        else:
            self._compute(request, pieces)

    def _plan_alone(self, request: Request) -> None:
        """The last resort for the first of the running: what idle requests hold must give way."""
        pieces = self._memory.plan(request, min(request.num_uncomputed, self._tokens_left))
        needed = self._memory.frames_needed(request, pieces)
        self._pressure.reset_idle_holders(needed, keep=request)
        self._memory.make_free(needed)
        if not self._compute_what_fits(request, pieces):
            raise RuntimeError(f"request {request.request_id} runs alone and cannot compute: it does not fit")

    def _compute_what_fits(self, request: Request, pieces: Sequence[Piece]) -> bool:
        """Compute as many of these tokens as the free frames can take; they wait for the next step if none can."""
        num_new = self._memory.longest_fit(request, pieces)
        if num_new:
            self._compute(request, self._memory.plan(request, num_new))
        return bool(num_new)

    def _compute(self, request: Request, pieces: Sequence[Piece]) -> None:
        table, known = request.table, request.token_ids
        start = table.num_tokens
        end = start + sum([piece.num_new for piece in pieces])
        self._memory.write(request, pieces)
        self._tokens_left -= end - start
        self._planned.append(
            ScheduledRequest(
                request_id=request.request_id,
                token_ids=known[start:end],
                start=start,
                context=Context(table, len(table.sealed)),
                writes=table.pending,
                samples=end == len(known),
                sampling=request.sampling,
                known_token_ids=known,
                num_known=len(known),
                num_prompt_tokens=len(request.prompt_token_ids),
                constraint=request.constraint,
                prompt_rows=request.rows_to_score(start, end),
            )
        )

    # Those who come

    def _bring(self, reserved: int) -> None:
        """Swapped and waiting requests in their order, until one finds no room."""
        books = self._books
        while len(books.running) < self._cap and (request := books.next_to_come()) is not None:
            if request.state is RequestState.SWAPPED:
                came = self._resume(request, reserved)
            else:
                came = self._tokens_left > 0 and self._admit(request, reserved)
            if not came:
                return
            reserved += self._frames_still_to_come(request)

    def _resume(self, request: Request, reserved: int) -> bool:
        running = self._books.running
        num_frames = self._memory.num_frames_away(request)
        # What it needs to go on, and one frame for each that runs, else somebody would be preempted again at once.
        needed = num_frames + reserved + 1 + len(running) if running else num_frames
        if needed > self._memory.num_available and not self._may_reset(num_frames, request):
            return False
        self._memory.make_free(num_frames)
        self._memory.swap_in(request)
        self._counters.resumes += 1
        self._pressure.protect(request)
        self._books.run(request)
        return True

    def _admit(self, request: Request, reserved: int) -> bool:
        running = self._books.running
        admission = self._memory.plan_admission(request)
        while admission.num_frames + reserved + len(running) > self._memory.num_available:
            if not self._may_reset(admission.num_frames, request):
                return False
            admission = self._memory.plan_admission(request)  # What was reset may have been what it shared.
        self._memory.admit(request, admission)
        self._count_admission(request)
        self._books.run(request)
        if not self._memory.is_arriving(request):
            self._begin(request)
        return True

    def _may_reset(self, num_frames: int, request: Request) -> bool:
        """Nobody runs, and what idle requests held is enough for this one now."""
        return not self._books.running and self._pressure.reset_idle_holders(num_frames, keep=request)

    def _begin(self, request: Request) -> None:
        pieces = self._memory.plan(request, min(request.num_uncomputed, self._tokens_left))
        if self._memory.make_free(self._memory.frames_needed(request, pieces)):
            self._compute(request, pieces)
        else:
            self._compute_what_fits(request, pieces)

    def _count_admission(self, request: Request) -> None:
        if request.was_admitted:
            return
        request.was_admitted = True
        request.num_cached_prompt_tokens = min(request.num_computed, request.num_prompt_tokens)
        self._counters.prompt_tokens += request.num_prompt_tokens

    def _frames_still_to_come(self, request: Request) -> int:
        """Frames that the rest of a prompt will take after this step."""
        planned = request.num_computed + sum(write.num_new for write in request.table.pending)
        if planned == request.num_tokens:
            return 0
        sizes, precision = self._memory.sizes, request.precision
        return max(0, sizes.frames(request.num_tokens, precision) - sizes.frames(planned, precision))

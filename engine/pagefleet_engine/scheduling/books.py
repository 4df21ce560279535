"""Which request is where. Every request is in exactly one place, and leaves it by `release` alone."""

from __future__ import annotations

from collections.abc import Iterator

from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.request import Request, RequestState
from pagefleet_engine.scheduling.ranked import RankedList


def queued_tokens(request: Request) -> int:
    """What a request adds to the tokens that wait. A fork shares the prompt of its parent, which counts."""
    return 0 if request.fork_of is not None else request.num_prompt_tokens


class Books:
    """The scheduler's lists of requests. Moving a request between them keeps its state in step."""

    def __init__(self, memory: KVMemory, *, aging_steps: int) -> None:
        self._memory = memory
        self.requests: dict[str, Request] = {}
        self._aging_steps = aging_steps
        self.waiting = RankedList(self._aged)
        self.running = RankedList(lambda request: request.rank)
        self.swapped = RankedList(lambda request: request.rank)
        self.parked: dict[str, Request] = {}
        """Ended, but kept for forks."""
        self.unborn: dict[str, list[Request]] = {}
        """Forks that wait for the first token of their parent, by its id."""
        self.ended: list[str] = []
        """Released since the last step."""
        self.num_waiting_tokens = 0
        """Of the prompts in `waiting`."""

    def wait(self, request: Request) -> None:
        """A new or preempted request takes its place in the queue."""
        self._leave(request)
        request.state = RequestState.WAITING
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self.num_waiting_tokens += queued_tokens(request)

    def wait_for_parent(self, request: Request, parent_id: str) -> None:
        """A fork whose parent is still computing the prompt that they share."""
        self.requests[request.request_id] = request
        self.unborn.setdefault(parent_id, []).append(request)

    def take_unborn(self, parent_id: str) -> list[Request]:
        """Forks that waited for this parent, which can be served now or never will be; the caller queues them."""
        return self.unborn.pop(parent_id, [])

    @property
    def num_waiting(self) -> int:
        """Requests that have not started, and preempted ones that have to start again."""
        return len(self.waiting) + sum(len(children) for children in self.unborn.values())

    def run(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.RUNNING
        self.running.add(request)

    def swap(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.SWAPPED
        self.swapped.add(request)

    def park(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.PARKED
        self.parked[request.request_id] = request

    def next_to_come(self) -> Request | None:
        """The first swapped request, or the first waiting one where it ranks before that, in years as well."""
        if not self.swapped or not self.waiting:
            return next(iter(self.swapped or self.waiting), None)
        swapped, new = self.swapped[0], self.waiting[0]
        return new if new.rank < swapped.rank and self._aged(new) < self._aged(swapped) else swapped

    def _aged(self, request: Request) -> tuple[int, int]:
        """Who waits grows older: the smallest is served first. See `ranked`."""
        return request.priority * self._aging_steps + request.arrival_step, request.arrival

    def idle_holders(self) -> Iterator[Request]:
        """Requests that hold frames of the pool without running, newest first."""
        for place in (self.parked.values(), self.waiting, self.swapped):
            for request in reversed(list(place)):
                if next(request.table.held_frames(), None) is not None:
                    yield request

    def release(self, request: Request) -> None:
        """End a request in whatever state it is, and give back everything it holds. Idempotent."""
        if request.state is RequestState.FINISHED:
            return
        self._leave(request)
        self._memory.release(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]
        self.ended.append(request.request_id)
        for child in self.take_unborn(request.request_id):
            self.wait(child)

    def _leave(self, request: Request) -> None:
        if self.waiting.discard(request):
            self.num_waiting_tokens -= queued_tokens(request)
        for place in (self.running, self.swapped):
            place.discard(request)
        self.parked.pop(request.request_id, None)
        if request.fork_of in self.unborn and request in self.unborn[request.fork_of]:
            self.unborn[request.fork_of].remove(request)

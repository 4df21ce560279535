"""Which request is where. Every request is in exactly one place, and leaves it by `release` alone."""

from __future__ import annotations

from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.request import Request, RequestState
from pagefleet_engine.scheduling.ranked import RankedList


class Books:
    """The scheduler's lists of requests. Moving a request between them keeps its state in step."""

    def __init__(self, memory: KVMemory, *, aging_steps: int) -> None:
        self._memory = memory
        self.requests: dict[str, Request] = {}
        self.waiting = RankedList(
            lambda request: (request.priority * aging_steps + request.arrival_step, request.arrival)
        )
        self.running = RankedList(lambda request: request.rank)
        self.swapped = RankedList(lambda request: request.rank)
        self.ended: list[str] = []
        """Released since the last step."""

    def wait(self, request: Request) -> None:
        """A new or preempted request takes its place in the queue."""
        self._leave(request)
        request.state = RequestState.WAITING
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def run(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.RUNNING
        self.running.add(request)

    def swap(self, request: Request) -> None:
        self._leave(request)
        request.state = RequestState.SWAPPED
        self.swapped.add(request)

    def release(self, request: Request) -> None:
        """End a request in whatever state it is, and give back everything it holds. Idempotent."""
        if request.state is RequestState.FINISHED:
            return
        self._leave(request)
        self._memory.release(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]
        self.ended.append(request.request_id)

    def _leave(self, request: Request) -> None:
        for place in (self.waiting, self.running, self.swapped):
            place.discard(request)

"""What gives way when a running request lacks frames.

In this order: cached frames that nobody holds; BF16 frames of requests that allow demotion; the newest running request
of the lowest priority, by swap, or by recompute when host memory is short. Requests that have been planned in the step
at hand never give way in it, and a resumed one not at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagefleet_engine.memory.memory import KVMemory
from pagefleet_engine.request import Request, RequestState
from pagefleet_engine.scheduling.books import Books
from pagefleet_engine.scheduling.stats import Counters


class Pressure:
    """Makes room in one step. `has_preempted` tells whether anybody had to leave."""

    def __init__(
        self, books: Books, memory: KVMemory, counters: Counters, *, step: int, protected_steps: int, may_demote: bool
    ) -> None:
        self._books = books
        self._memory = memory
        self._counters = counters
        self._step = step
        self._protected_steps = protected_steps
        self._may_demote = may_demote
        self.has_preempted = False

    def make_free(self, num_frames: int, index: int, *, spare_protected: bool) -> bool:
        """Free this many frames for the running request at `index`, at the cost of itself and those behind it.

        False when that is not enough. With `spare_protected`, those who have just been resumed keep their frames.
        """
        while not self._memory.make_free(num_frames):
            if self._demote(index):
                continue
            victim = self._find_victim(index, spare_protected=spare_protected)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def reset_idle_holders(self, num_frames: int, *, keep: Request) -> bool:
        """Have this many frames available by dropping what waiting forks, parked and swapped requests hold in the pool.

        They compute it again, except `keep`, which keeps what it has. Only for a step that could do nothing else.
        """
        for holder in list(self._books.idle_holders()):
            if self._memory.num_available >= num_frames:
                break
            if holder is not keep:
                self._counters.resets += 1
                self._memory.release(holder)
                if holder.state is not RequestState.PARKED:
                    self._books.wait(holder)
        return self._memory.num_available >= num_frames

    def protect(self, request: Request) -> None:
        """A request has just been resumed."""
        request.protected_until_step = self._step + self._protected_steps

    def _demote(self, index: int) -> bool:
        if not self._may_demote:
            return False
        candidates = (request for request in self._from(index) if request.allow_demotion)
        return any(self._memory.try_demote(request) for request in candidates)

    def _find_victim(self, index: int, *, spare_protected: bool) -> Request | None:
        for request in self._books.running.after(index):
            if not spare_protected or request.protected_until_step <= self._step:
                return request
        return None

    def _from(self, index: int) -> Iterator[Request]:
        yield from self._books.running.after(index)
        yield self._books.running[index]

    def _preempt(self, victim: Request) -> None:
        self.has_preempted = True
        self._counters.preemptions += 1
        if self._memory.try_swap_out(victim):
            self._counters.swaps += 1
            self._books.swap(victim)
        else:
            self._counters.recomputes += 1
            self._memory.release(victim)
            self._books.wait(victim)

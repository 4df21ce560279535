"""Where the process is between its first breath and its last, and what that means for a request.

    LOADING → READY → DRAINING (late arrivals are still served) → REFUSING (503) → stopped by `serve`

Draining begins with SIGTERM or by the control API, also while the model loads. A drain can be cancelled until the
listener closes: then the process is where it would be without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from pagefleet_engine.server.errors import ApiError, unavailable


class Phase(StrEnum):
    """What the process is doing, as `/ready` says it."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    REFUSING = "refusing"


class Lifecycle:
    """The phase, and how many requests are being served. Belongs to the event loop."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.is_loaded = False
        """There is a model to serve; in every phase but LOADING this says more than the phase."""
        self.in_flight = 0
        self.retry_after_s = 1.0
        """What refused clients are told."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_ready(self) -> bool:
        """New traffic should come here."""
        return self.phase is Phase.READY

    @property
    def closes_connections(self) -> bool:
        """Clients should find another pod for their next request."""
        return self.phase in (Phase.DRAINING, Phase.REFUSING)

    def loaded(self) -> None:
        """The model is there; a drain that began before goes on."""
        self.is_loaded = True
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def stay(self) -> None:
        """A drain has been taken back."""
        self.phase = Phase.READY if self.is_loaded else Phase.LOADING

    def refusal(self) -> ApiError | None:
        """Why a request that needs the model cannot be served now."""
        if not self.is_loaded:
            return unavailable("the model is still loading: try again", "loading", self.retry_after_s)
        if self.phase is Phase.REFUSING:
            return unavailable("this engine is shutting down: try again elsewhere", "draining", self.retry_after_s)
        return None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Counts one request for as long as it lasts."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when nothing is being served."""
        await self._idle.wait()

"""What becomes of one job's choices at the engine's door. They are taken together, or the job is refused."""

from __future__ import annotations

import asyncio


class Intake:
    """Shared by the choices of one job. Belongs to the event loop."""

    def __init__(self, num_choices: int) -> None:
        self._num_left = num_choices
        self._complete = asyncio.Event()
        self.is_refused = False
        """The engine did not take one of them. The others end with it, and count nowhere if nothing came of them."""

    def took_one(self) -> None:
        """The engine has queued one choice."""
        self._num_left -= 1
        if self._num_left == 0:
            self._complete.set()

    async def wait_complete(self) -> None:
        """Returns when the engine has taken all of them: it refuses none from then on."""
        await self._complete.wait()

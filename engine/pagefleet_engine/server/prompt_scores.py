"""Log probabilities of a job's prompts, which the first choice of each prompt finds out for all of its choices."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.job import Choice, Job


class PromptScores:
    """Shared by the choices of one job. Belongs to the event loop."""

    def __init__(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        self._found: dict[int, asyncio.Future[PromptLogprobs]] = {
            choice.index: loop.create_future()
            for choice in job.choices
            if choice.index == choice.leader and choice.sampling.prompt_logprobs is not None
        }
        self._has_them: set[int] = set()

    async def complete(self, choice: Choice, delta: Delta) -> Delta:
        """The first delta of every choice with its prompt's log probabilities, the others as they are.

        Waits for the prompt's first choice; when that one fails, the job ends and whoever waits is cancelled.
        """
        found = self._found.get(choice.leader)
        if found is None or choice.index in self._has_them:
            return delta
        self._has_them.add(choice.index)
        if choice.index != choice.leader:
            return replace(delta, prompt_logprobs=await found)
        if delta.prompt_logprobs is not None:
            found.set_result(delta.prompt_logprobs)
        return delta

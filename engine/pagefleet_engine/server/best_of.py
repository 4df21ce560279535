"""`best_of`: of the choices made for a prompt, those that the client gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pagefleet_engine.server.job import Choice, Job
from pagefleet_engine.server.shapes import Whole


def keep_best(job: Job, wholes: Sequence[Whole]) -> tuple[Job, list[Whole]]:
    """The job and its answers without the choices that are not kept, best first and numbered through."""
    if job.keep is None:
        return job, list(wholes)
    kept: list[tuple[Choice, Whole]] = []
    for _, candidates in groupby(zip(job.choices, wholes, strict=True), key=lambda pair: pair[0].leader):
        kept.extend(sorted(candidates, key=lambda pair: -mean_logprob(pair[1]))[: job.keep])
    choices = tuple(replace(choice, index=index) for index, (choice, _) in enumerate(kept))
    return replace(job, choices=choices), [whole for _, whole in kept]


def mean_logprob(whole: Whole) -> float:
    """Mean log probability of the answer's tokens; an empty answer is worse than any other."""
    if not whole.logprobs:
        return float("-inf")
    return sum(entry.logprob for entry in whole.logprobs) / len(whole.logprobs)

"""A request after every check: what to generate, and how the client wants it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagefleet_engine.request import SamplingParams, nth_seed
from pagefleet_engine.server.errors import context_overflow
from pagefleet_engine.server.routes import RoutePick
from pagefleet_engine.server.schemas import GenerationBody
from pagefleet_engine.server.structured_work import FREE, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to make: one request of the engine."""

    index: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    pick: RoutePick
    leader: int
    """Index of the first choice of the same prompt, whose frames the others share; its own for that one."""
    echo: str = ""
    """Text of the prompt, where the answer begins with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamOptions:
    """A beam search in place of sampling."""

    width: int
    length_penalty: float
    """Answers are ranked by their log probability over their length to the power of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All choices of one HTTP request."""

    id: str
    """What the client reads, who may have chosen it."""
    key: str
    """What the engine's requests are named after: no client chooses it, so it is nobody else's."""
    created: int
    """Unix seconds."""
    arrived_at_s: float
    """By the service's monotonic clock: when its body was there."""
    model: str
    choices: tuple[Choice, ...]
    num_prompt_tokens: int
    """Each prompt counted once, whatever `n` is."""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    skip_special_tokens: bool = True
    include_stop: bool = False
    priority: int = 0
    cache_salt: str = ""
    keep: int | None = None
    """With `best_of`: choices of each prompt that the client gets, the best of those that are made."""
    structure: Structure = FREE
    """What the answers must look like, and which tools they may call."""
    beam: BeamOptions | None = None
    """The choices are the best of a beam search, instead of being sampled."""
    echoes_logprobs: bool = False
    """The log probabilities of an answer begin with those of its prompt."""
    returns_token_ids: bool = False
    """The client wants the tokens of prompts and answers as numbers, too."""
    prompt_logprobs: int | None = None
    """The client wants those of the prompt by themselves, with so many of the most likely tokens."""


def wants(body: GenerationBody) -> dict[str, Any]:
    """The fields of a `Job` that say how the client wants the answer."""
    options = body.stream_options
    return {
        "stream": bool(body.stream),
        "include_usage": bool(options and options.include_usage),
        "continuous_usage": bool(options and options.continuous_usage_stats),
        "skip_special_tokens": body.skip_special_tokens is not False,
        "include_stop": bool(body.include_stop_str_in_output),
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt or "",
        "echoes_logprobs": body.echoed_logprobs is not None,
        "prompt_logprobs": body.prompt_logprobs,
        "returns_token_ids": body.return_token_ids is True,
        "keep": (body.n or 1) if body.best_of is not None and body.best_of > (body.n or 1) else None,
    }


def fit_length(sampling: SamplingParams, num_prompt: int, max_model_len: int, *, param: str) -> SamplingParams:
    """Give the answer its length in tokens. Raises `ApiError` when prompt and answer do not fit the context."""
    wanted = sampling.max_tokens
    shortest = 1 if wanted is None else wanted
    if num_prompt + shortest > max_model_len:
        raise context_overflow(num_prompt, shortest, max_model_len, param=param)
    return sampling if wanted is not None else replace(sampling, max_tokens=max_model_len - num_prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """One prompt of a job: its ids, how to sample after it, and what its route has decided."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    pick: RoutePick
    echo: str = ""


def spread(plans: Sequence[PromptPlan]) -> tuple[Choice, ...]:
    """`best_of` or `n` choices per prompt, numbered through; choice i of a prompt samples with `seed + i`.

    The first of them asks the engine about the prompt's own log probabilities, for all.
    """
    choices: list[Choice] = []
    for plan in plans:
        leader = len(choices)
        for i in range(plan.sampling.best_of or plan.sampling.n):
            choice = Choice(
                index=leader + i,
                prompt_ids=plan.prompt_ids,
                sampling=_nth(plan.sampling, i),
                pick=plan.pick,
                leader=leader,
                echo=plan.echo,
            )
            choices.append(choice)
    return tuple(choices)


def _nth(sampling: SamplingParams, i: int) -> SamplingParams:
    seed = None if sampling.seed is None else nth_seed(sampling.seed, i)
    prompt_logprobs = None if i else sampling.prompt_logprobs
    return replace(sampling, n=1, best_of=None, seed=seed, prompt_logprobs=prompt_logprobs)

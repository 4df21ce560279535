"""Conversations to measure on: the model answers questions in BF16 KV, each with the whole history before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagefleet_cli.bench.divergence import Scores
from pagefleet_cli.bench.forced import Turn, frames_for, score_turns
from pagefleet_cli.bench.models import Lab, Model, make_lab
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams

TEMPERATURE = 0.8
"""Greedy answers of a small model repeat themselves, and repetitions are easy to predict in any precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScore:
    """One turn of one conversation."""

    scores: dict[Precision, Scores]  # over the tokens of the answer
    num_tokens: int  # of the context at its end
    num_cached: int  # of them in the prefix cache when it began


def score_conversation(
    model: Model, questions: Sequence[str], precisions: Sequence[Precision], *, seed: int, max_tokens: int
) -> list[TurnScore]:
    """Hold one conversation, then put it through every precision turn by turn."""
    turns = hold_conversation(model, questions, seed=seed, max_tokens=max_tokens)
    return [
        TurnScore(scores=scores, num_tokens=len(turn.prompt) + len(turn.answer), num_cached=cached)
        for turn, (scores, cached) in zip(turns, score_turns(model, turns, precisions), strict=True)
    ]


def hold_conversation(model: Model, questions: Sequence[str], *, seed: int, max_tokens: int) -> list[Turn]:
    """The turns; another seed gives other answers."""
    longest = min(model.decoder.config.context_len, len(questions) * (max_tokens + 64) + 64)
    lab = make_lab(model, num_frames=frames_for(model, longest), enable_prefix_caching=True)
    dialogue: list[dict[str, str]] = []
    turns: list[Turn] = []
    for number, question in enumerate(questions):
        dialogue.append({"role": "user", "content": question})
        prompt = model.tokenizer.encode(model.tokenizer.apply_chat_template(dialogue), add_special_tokens=False)
        sampling = SamplingParams(temperature=TEMPERATURE, seed=seed, max_tokens=max_tokens, min_tokens=8)
        answer = _answer(lab, Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
        turns.append(Turn(prompt=prompt, answer=answer))
        dialogue.append({"role": "assistant", "content": model.tokenizer.decode(answer)})
    return turns


def _answer(lab: Lab, request: Request) -> list[int]:
    """Its tokens, never none."""
    lab.core.add(request)
    tokens: list[int] = []
    while lab.core.has_work:
        for _, output in lab.core.step():
            tokens.extend(output.token_ids)
    lab.executor.forget(request.request_id)
    return tokens

"""Conversations to measure on: the model answers ten questions in BF16 KV, each with the whole history before it."""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_cli.bench.forced import Turn, frames_for
from pagefleet_cli.bench.models import Lab, Model, make_lab
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams

TEMPERATURE = 0.8
"""Greedy answers of a small model repeat themselves, and repetitions are easy to predict in any precision."""


def hold_conversations(model: Model, questions: Sequence[str], *, count: int, max_tokens: int) -> list[list[Turn]]:
    """`count` conversations, side by side, that differ by the seeds of their answers."""
    longest = min(model.decoder.config.context_len, len(questions) * (max_tokens + 64) + 64)
    lab = make_lab(model, num_frames=count * frames_for(model, longest), max_num_seqs=count, enable_prefix_caching=True)
    dialogues: list[list[dict[str, str]]] = [[] for _ in range(count)]
    held: list[list[Turn]] = [[] for _ in range(count)]
    for question in questions:
        for dialogue in dialogues:
            dialogue.append({"role": "user", "content": question})
        prompts = [_prompt(model, dialogue) for dialogue in dialogues]
        answers = _answer(lab, prompts, round_number=len(held[0]), max_tokens=max_tokens)
        for turns, dialogue, prompt, answer in zip(held, dialogues, prompts, answers, strict=True):
            turns.append(Turn(prompt=prompt, answer=answer))
            dialogue.append({"role": "assistant", "content": model.tokenizer.decode(answer)})
    return held


def _prompt(model: Model, dialogue: Sequence[dict[str, str]]) -> list[int]:
    return model.tokenizer.encode(model.tokenizer.apply_chat_template(dialogue), add_special_tokens=False)


def _answer(lab: Lab, prompts: Sequence[Sequence[int]], *, round_number: int, max_tokens: int) -> list[list[int]]:
    """One answer per prompt, never empty."""
    answers: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        request_id = f"{round_number}/{number}"
        answers[request_id] = []
        sampling = SamplingParams(temperature=TEMPERATURE, seed=number, max_tokens=max_tokens, min_tokens=8)
        lab.core.add(
            Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, precision=Precision.BF16)
        )
    while lab.core.has_work:
        for request_id, output in lab.core.step():
            answers[request_id].extend(output.token_ids)
    for request_id in answers:
        lab.executor.take(request_id)
    return list(answers.values())

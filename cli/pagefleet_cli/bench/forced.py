"""Text through the engine as prompts, teacher-forced: windows, one long context, and conversations turn by turn.

Each precision is a request of its own; the frames that a query sees are sealed by the engine, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from pagefleet_cli.bench.divergence import Scores, compare
from pagefleet_cli.bench.models import Lab, Model, make_lab
from pagefleet_cli.bench.rows import Rows
from pagefleet_cli.bench.workers import Workers
from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams

BUDGET: Final = 512
"""Tokens of a step: a window goes in as chunks of this size."""
OTHER_BUDGET: Final = 128
_ONE_TOKEN: Final = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation: everything before the answer, and the answer."""

    prompt: Sequence[int]
    answer: Sequence[int]


def feed(lab: Lab, request_id: str, token_ids: Sequence[int], precision: Precision) -> Rows:
    """Activations of every position that the engine computed. One request at a time."""
    request = Request(request_id=request_id, prompt_token_ids=token_ids, sampling=_ONE_TOKEN, precision=precision)
    lab.core.add(request)
    while lab.core.has_work:
        lab.core.step()
    return lab.executor.take(request_id)


def feed_context(model: Model, token_ids: Sequence[int], precision: Precision, budget: int) -> NDArray[Any]:
    """Activations `[N, D]` of one context in an engine of its own; fp32, whatever the model's dtype is."""
    lab = make_lab(model, num_frames=frames_for(model, len(token_ids)), max_num_batched_tokens=budget)
    return feed(lab, precision, token_ids, precision).hidden_ND.float().numpy()


def begin_text(
    workers: Workers, model: Model, token_ids: Sequence[int], precisions: Sequence[Precision], *, budget: int = BUDGET
) -> Callable[[], dict[Precision, Scores]]:
    """Feed one context, and score it when the returned function is called.

    All tokens but the last are fed, and each predicts the next one. BF16 is among the scores.
    """
    fed = {p: workers.submit(feed_context, token_ids[:-1], p, budget) for p in with_bf16(precisions)}

    def finish() -> dict[Precision, Scores]:
        hidden = {precision: _tensor(model, result()) for precision, result in fed.items()}
        found = compare(model.decoder, hidden[Precision.BF16], only(hidden, precisions), token_ids[1:])
        return {Precision.BF16: found.reference} | found.others

    return finish


def begin_chunking(workers: Workers, model: Model, token_ids: Sequence[int]) -> Callable[[], Scores]:
    """BF16 KV against itself in chunks of another size: what rounding of the activations alone brings."""
    first, second = (
        workers.submit(feed_context, token_ids[:-1], Precision.BF16, budget) for budget in (BUDGET, OTHER_BUDGET)
    )

    def finish() -> Scores:
        reference, other = _tensor(model, first()), _tensor(model, second())
        return compare(model.decoder, reference, {"": other}, token_ids[1:]).others[""]

    return finish


def score_turns(
    model: Model, turns: Sequence[Turn], precisions: Sequence[Precision]
) -> Iterator[tuple[dict[Precision, Scores], int]]:
    """For each turn the scores of its answer's tokens, and how many tokens of it were in the prefix cache already."""
    longest = max(len(turn.prompt) + len(turn.answer) for turn in turns)
    num_frames = frames_for(model, longest) * (len(precisions) + 1)
    lab = make_lab(model, num_frames=num_frames, enable_prefix_caching=True)
    for number, turn in enumerate(turns):
        fed = [*turn.prompt, *turn.answer[:-1]]
        rows = {p: feed(lab, f"{p}/{number}", fed, p) for p in with_bf16(precisions)}
        answers = {p: _last(part, len(turn.answer)) for p, part in rows.items()}
        found = compare(model.decoder, answers[Precision.BF16], only(answers, precisions), turn.answer)
        yield found.others, min(part.start for part in rows.values())


def frames_for(model: Model, num_tokens: int) -> int:
    """Frames that hold one such context and its answer in any precision."""
    return GroupSizes(model.layout).peak_frames(num_tokens + 1, Precision.BF16) + 4


def with_bf16(precisions: Sequence[Precision]) -> list[Precision]:
    """BF16 first, each of them once."""
    return list(dict.fromkeys((Precision.BF16, *precisions)))


def only(hidden: Mapping[Precision, Tensor], precisions: Sequence[Precision]) -> dict[Precision, Tensor]:
    """The activations of these precisions."""
    return {precision: hidden[precision] for precision in precisions}


def _tensor(model: Model, hidden_ND: NDArray[Any]) -> Tensor:
    """In the model's own dtype again, without loss."""
    return torch.from_numpy(hidden_ND).to(model.decoder.embedding.weight.dtype)


def _last(rows: Rows, num_tokens: int) -> Tensor:
    if rows.hidden_ND.shape[0] < num_tokens:
        raise ValueError(f"only {rows.hidden_ND.shape[0]} rows were computed, {num_tokens} are wanted")
    return rows.hidden_ND[-num_tokens:]

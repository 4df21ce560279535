"""Text through the engine as prompts, teacher-forced: windows, one long context, and conversations turn by turn.

Each precision is a request of its own; the frames that a query sees are sealed by the engine, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from pagefleet_cli.bench.divergence import Scores, compare
from pagefleet_cli.bench.models import Lab, Model, make_lab
from pagefleet_cli.bench.rows import Rows
from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams

BUDGET: Final = 512
"""Tokens of a step: a window goes in as chunks of this size."""
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


def score_text(
    model: Model, token_ids: Sequence[int], precisions: Sequence[Precision], *, budget: int = BUDGET
) -> dict[Precision, Scores]:
    """One context from its first token on: all tokens but the last are fed, and each predicts the next one."""
    fed = token_ids[:-1]
    lab = make_lab(model, num_frames=frames_for(model, len(fed)), max_num_batched_tokens=budget)
    hidden = {precision: feed(lab, precision, fed, precision).hidden_ND for precision in _with_bf16(precisions)}
    return compare(model.decoder, hidden[Precision.BF16], _only(hidden, precisions), token_ids[1:])


def score_chunking(model: Model, token_ids: Sequence[int]) -> Scores:
    """BF16 KV against itself in chunks of another size: what rounding of the activations alone brings."""
    fed, sizes = token_ids[:-1], (BUDGET, BUDGET // 4)
    labs = [make_lab(model, num_frames=frames_for(model, len(fed)), max_num_batched_tokens=budget) for budget in sizes]
    reference, other = (feed(lab, "bf16", fed, Precision.BF16).hidden_ND for lab in labs)
    return compare(model.decoder, reference, {"": other}, token_ids[1:])[""]


def score_turns(
    model: Model, turns: Sequence[Turn], precisions: Sequence[Precision]
) -> Iterator[tuple[dict[Precision, Scores], int]]:
    """For each turn the scores of its answer's tokens, and how many tokens of it were in the prefix cache already."""
    longest = max(len(turn.prompt) + len(turn.answer) for turn in turns)
    num_frames = frames_for(model, longest) * (len(precisions) + 1)
    lab = make_lab(model, num_frames=num_frames, enable_prefix_caching=True)
    for number, turn in enumerate(turns):
        fed = [*turn.prompt, *turn.answer[:-1]]
        rows = {p: feed(lab, f"{p}/{number}", fed, p) for p in _with_bf16(precisions)}
        answers = {p: _last(found, len(turn.answer)) for p, found in rows.items()}
        scores = compare(model.decoder, answers[Precision.BF16], _only(answers, precisions), turn.answer)
        yield scores, min(found.start for found in rows.values())


def frames_for(model: Model, num_tokens: int) -> int:
    """Frames that hold one such context and its answer in every precision, one after the other."""
    return GroupSizes(model.layout).peak_frames(num_tokens + 1, Precision.BF16) + 4


def _last(rows: Rows, num_tokens: int) -> Tensor:
    if rows.hidden_ND.shape[0] < num_tokens:
        raise ValueError(f"only {rows.hidden_ND.shape[0]} rows were computed, {num_tokens} are wanted")
    return rows.hidden_ND[-num_tokens:]


def _with_bf16(precisions: Sequence[Precision]) -> list[Precision]:
    return list(dict.fromkeys((Precision.BF16, *precisions)))


def _only(hidden: Mapping[Precision, Tensor], precisions: Sequence[Precision]) -> dict[Precision, Tensor]:
    return {precision: hidden[precision] for precision in precisions}

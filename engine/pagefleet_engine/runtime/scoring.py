"""Log probabilities of prompt tokens, from the activations of a step that computes a piece of the prompt.

The logits of a whole prompt would take gigabytes, so rows go through the head a slice at a time. The convention is that
of sampled tokens: the model's own distribution, in fp32, before temperature and penalties.

Shapes: T rows of the step, S rows of a slice, V vocabulary, D hidden size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.runtime.sampler import Sampled
from pagefleet_engine.scheduling.output import ScheduledRequest

SLICE_ROWS = 64
"""Rows whose logits exist at once: 3 tensors of 39 MB for a vocabulary of 152,000. A multiple of the row tile."""


class ScoredRows(NamedTuple):
    """Rows of one request whose logits are wanted, one for each of these prompt tokens."""

    request_id: str
    first: int
    """Row of the step's activations that the first of `token_ids` follows from; the others come after it."""
    token_ids: tuple[int, ...]
    num_top: int


def rows_to_score(requests: Iterable[tuple[ScheduledRequest, int]]) -> tuple[ScoredRows, ...]:
    """What a step has to score, from its requests and the first row of each."""
    return tuple(
        ScoredRows(
            request_id=request.request_id,
            first=row + request.prompt_rows.start - request.start,
            token_ids=tuple(request.known_token_ids[request.prompt_rows.start + 1 : request.prompt_rows.stop + 1]),
            num_top=request.sampling.prompt_logprobs or 0,
        )
        for request, row in requests
        if request.prompt_rows
    )


def score(logits: Callable[[Tensor], Tensor], hidden_TD: Tensor, rows: ScoredRows) -> Sampled:
    """The log probabilities of these rows, or the error that ends the request: NaN is no number for a client."""
    slices = []
    for start in range(0, len(rows.token_ids), SLICE_ROWS):
        token_ids = rows.token_ids[start : start + SLICE_ROWS]
        first = rows.first + start
        logits_SV = logits(hidden_TD[first : first + len(token_ids)])
        peak = _worst_peak(logits_SV)
        if not math.isfinite(peak):
            return Sampled(request_id=rows.request_id, token_id=None, error=f"the model's logits peak at {peak}")
        slices.append(token_scores(logits_SV, token_ids, rows.num_top))
    found = slices[0]
    for following in slices[1:]:
        found.extend(following)
    return Sampled(request_id=rows.request_id, token_id=None, prompt_logprobs=found)


def token_scores(logits_SV: Tensor, token_ids: Sequence[int], num_top: int) -> PromptLogprobs:
    """Log probability and rank of one token per row, and the `num_top` most likely ones."""
    logprobs_SV = logits_SV.float().log_softmax(dim=-1)
    own_S1 = logprobs_SV.gather(1, torch.tensor(token_ids, device=logprobs_SV.device)[:, None])
    num_top = min(num_top, logprobs_SV.shape[1])
    top_ST, ids_ST = logprobs_SV.topk(num_top)
    return PromptLogprobs(
        num_top=num_top,
        token_ids=array("i", token_ids),
        logprobs=array("f", own_S1[:, 0].tolist()),
        ranks=array("i", (logprobs_SV >= own_S1).sum(-1).tolist()),
        top_ids=array("i", ids_ST.flatten().tolist()),
        top_logprobs=array("f", top_ST.flatten().tolist()),
    )


def with_scores(sampled: Sequence[Sampled], scored: Sequence[Sampled]) -> list[Sampled]:
    """One result per request: what was sampled with what was scored, an error before either."""
    results = {result.request_id: result for result in sampled}
    for score in scored:
        known = results.get(score.request_id)
        if known is None or score.error is not None:
            results[score.request_id] = score
        elif known.error is None:
            results[score.request_id] = replace(known, prompt_logprobs=score.prompt_logprobs)
    return list(results.values())


def _worst_peak(logits_SV: Tensor) -> float:
    """The largest logit of a row where it is not finite, else that of any row."""
    peaks_S = logits_SV.amax(dim=-1)
    broken = peaks_S[~peaks_S.isfinite()]
    return float(broken[0] if broken.numel() else peaks_S[0])

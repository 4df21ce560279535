"""Logits to tokens. Row by row a token depends on nothing but its row's logits and parameters; rows drawn `in_batches`
are as wide as the widest filter among them, so that their sums may differ by an ulp with their neighbours.

The order is: log probabilities of the model's own distribution, then the constraint's mask, minimum length, logit bias,
penalties, temperature, min-p, top-k, top-p of what those two leave, and one uniform number that is a function of (seed,
index of the token). A resumed or recomputed request therefore draws the same numbers again.

Shapes: S rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagefleet_engine.api import TokenLogprobs
from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.request import SamplingParams
from pagefleet_engine.runtime.batched_draw import draw_rows
from pagefleet_engine.runtime.random import uniform
from pagefleet_engine.scheduling.output import ScheduledRequest
from pagefleet_engine.structured.constraint import Constraint, ConstraintFailed

_NEVER = float("-inf")
_PENALTIES = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, _NEVER
).astype(np.float32)
"""For each byte of a mask, what its eight tokens get."""
_CANDIDATES = 1024
"""Tokens among which top-p is tried first; sorting a whole vocabulary takes milliseconds."""


class DrawFailed(ValueError):
    """The row has no distribution to draw from: its logits have left the range of fp32 on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a step brought one request: its next token, log probabilities of prompt tokens, or why there is neither."""

    request_id: str
    token_id: int | None
    """None when the request's last known token was not in the step, or with an error."""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    """Of the prompt tokens that this step's rows predict."""
    error: str | None = None
    is_client_error: bool = False
    """The error comes from the request's constraint."""
    is_complete: bool = False
    """The constraint lets nothing follow this token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What sampling needs besides the request: the engine's seed and the model's end-of-sequence tokens."""

    seed: int
    eos_token_ids: tuple[int, ...]
    in_batches: bool = False
    """Rows that differ in temperature and filters alone are drawn together: pays where a device is waited for."""

    def sample(self, logits_SV: Tensor, requests: Sequence[ScheduledRequest]) -> list[Sampled]:
        """One result per row. A row with NaN or without any finite logit gets an error, the others do not notice."""
        peaks = logits_SV.amax(dim=-1).tolist()
        best = logits_SV.argmax(dim=-1).tolist()
        drawn = self._draw_together(logits_SV, requests) if self.in_batches else {}
        return [
            self._sample_row(logits_SV[row], request, peaks[row], best[row], drawn.get(row))
            for row, request in enumerate(requests)
        ]

    def _draw_together(self, logits_SV: Tensor, requests: Sequence[ScheduledRequest]) -> dict[int, int | None]:
        """Tokens by row; None, or no entry, for rows that are drawn by themselves."""
        rows = [row for row, request in enumerate(requests) if _is_plain_draw(request)]
        if not rows:
            return {}
        chosen = [requests[row] for row in rows]
        draws = [uniform(self._seed_of(r), r.num_known - r.num_prompt_tokens) for r in chosen]
        return dict(zip(rows, draw_rows(logits_SV[rows], [r.sampling for r in chosen], draws), strict=True))

    def _sample_row(
        self, logits_V: Tensor, request: ScheduledRequest, peak: float, best: int, drawn: int | None
    ) -> Sampled:
        if not _NEVER < peak < float("inf"):
            return Sampled(request_id=request.request_id, token_id=None, error=f"the model's logits peak at {peak}")
        params = request.sampling
        is_complete = False
        try:
            if drawn is not None:
                token_id = drawn
            elif request.constraint is None:
                token_id = best if _is_plain_greedy(params) else self._choose(logits_V, request)
            else:
                token_id = self._choose_allowed(logits_V, request, request.constraint)
                is_complete = request.constraint.accept(token_id)
        except (ConstraintFailed, DrawFailed) as error:
            is_client_error = isinstance(error, ConstraintFailed)
            return Sampled(
                request_id=request.request_id, token_id=None, error=str(error), is_client_error=is_client_error
            )
        logprobs = None if params.logprobs is None else token_logprobs(logits_V, token_id, params.logprobs)
        return Sampled(request_id=request.request_id, token_id=token_id, logprobs=logprobs, is_complete=is_complete)

    def _choose_allowed(self, logits_V: Tensor, request: ScheduledRequest, constraint: Constraint) -> int:
        """A token that the constraint allows; where it leaves no choice it beats `ignore_eos` and `min_tokens`."""
        answer = request.known_token_ids[request.num_prompt_tokens : request.num_known]
        logits_V = logits_V + mask_penalties(constraint.mask(answer), logits_V)
        if not float(logits_V.amax()) > _NEVER:
            raise ConstraintFailed("the constraint leaves no token that this model could say")
        if request.sampling.ignore_eos:
            forbid(logits_V, self.eos_token_ids)
        return self._choose(logits_V, request)

    def _choose(self, logits_V: Tensor, request: ScheduledRequest) -> int:
        params = request.sampling
        known = request.known_token_ids[: request.num_known]
        index = request.num_known - request.num_prompt_tokens
        stops = params.stop_token_ids if params.ignore_eos else (*self.eos_token_ids, *params.stop_token_ids)
        logits_V = logits_V.clone()
        if index < params.min_tokens:
            forbid(logits_V, stops)
        apply_bias(logits_V, params.logit_bias)
        apply_repetition(logits_V, known, params.repetition_penalty)
        apply_occurrence(logits_V, known[request.num_prompt_tokens :], params)
        if params.is_greedy:
            return int(logits_V.argmax())
        draw = uniform(self._seed_of(request), index)
        return draw_token(logits_V / params.temperature, params, draw)

    def _seed_of(self, request: ScheduledRequest) -> int:
        """Requests that bring no seed differ from each other, and repeat under the same id and engine seed."""
        if request.sampling.seed is not None:
            return request.sampling.seed
        text = f"{self.seed}/{request.request_id}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def token_logprobs(logits_V: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Log probabilities of the chosen token and of the `num_top` most likely ones."""
    logprobs_V = logits_V.log_softmax(dim=-1)
    values, ids = logprobs_V.topk(min(num_top, logprobs_V.numel()))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token_id=token_id, logprob=float(logprobs_V[token_id]), top=top)


def mask_penalties(mask: bytes, logits_V: Tensor) -> Tensor:
    """What to add to the logits: `[V]`, 0 where the bit mask allows a token and minus infinity elsewhere.

    Adding costs a tenth of `masked_fill` on a CPU.
    """
    known = _PENALTIES[np.frombuffer(mask, dtype=np.uint8)].reshape(-1)[: logits_V.numel()]
    penalties_V = np.full(logits_V.numel(), _NEVER, dtype=np.float32)  # ids beyond the tokenizer's stay out
    penalties_V[: len(known)] = known
    return torch.from_numpy(penalties_V).to(logits_V)


def forbid(logits_V: Tensor, ids: Sequence[int]) -> None:
    """Take these tokens out, in place, unless nothing else would be left."""
    kept = logits_V[list(ids)]
    logits_V[list(ids)] = _NEVER
    if not float(logits_V.amax()) > _NEVER:
        logits_V[list(ids)] = kept


def apply_bias(logits_V: Tensor, bias: Mapping[int, float]) -> None:
    """Add each bias to its token's logit, in place."""
    if bias:
        logits_V[list(bias)] += torch.tensor(list(bias.values()), dtype=logits_V.dtype, device=logits_V.device)


def apply_repetition(logits_V: Tensor, known: Sequence[int], penalty: float) -> None:
    """Divide positive and multiply negative logits of every known token, once each, in place."""
    if penalty == 1.0 or not known:
        return
    ids = torch.tensor(sorted(set(known)), device=logits_V.device)
    seen = logits_V[ids]
    logits_V[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def apply_occurrence(logits_V: Tensor, answer: Sequence[int], params: SamplingParams) -> None:
    """Subtract presence once and frequency per occurrence of a token in the answer, in place."""
    if not answer or (params.presence_penalty == 0.0 and params.frequency_penalty == 0.0):
        return
    ids, counts = torch.unique(torch.tensor(list(answer), device=logits_V.device), return_counts=True)
    logits_V[ids] -= params.presence_penalty + params.frequency_penalty * counts.to(logits_V.dtype)


def draw_token(logits_V: Tensor, params: SamplingParams, draw: float) -> int:
    """The token whose share of the filtered distribution contains `draw`, 0 <= draw < 1; likely tokens first."""
    if params.top_k is None and params.top_p == 1.0 and params.min_p == 0.0:
        return _at_share(logits_V.softmax(dim=-1), draw)
    probabilities_V = logits_V.softmax(dim=-1)
    values, ids = _candidates(probabilities_V, params)
    keep = _num_kept(values, _mass(probabilities_V, values, params), params)
    return int(ids[_at_share(values[:keep], draw)])


def _candidates(probabilities_V: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Probabilities in falling order with their ids: all that the filters may keep."""
    size = probabilities_V.numel()
    wanted = min(size, params.top_k or _CANDIDATES)
    values, ids = probabilities_V.topk(wanted)
    may_lack = params.top_k is None and wanted < size and float(values[-1]) >= params.min_p * float(values[0])
    if may_lack and float(values.sum()) < params.top_p * _mass(probabilities_V, values, params):
        values, ids = probabilities_V.topk(size)
    return values, ids


def _mass(probabilities_V: Tensor, values: Tensor, params: SamplingParams) -> float:
    """What min-p and top-k leave of the distribution together, of which top-p takes its share."""
    if params.top_k is None and params.min_p == 0.0:
        return 1.0
    among = probabilities_V if params.top_k is None else values
    return float(among[among >= params.min_p * values[0]].sum())


def _num_kept(values: Tensor, mass: float, params: SamplingParams) -> int:
    """How many of the falling probabilities pass min-p and then top-p; at least one."""
    kept = int((values >= params.min_p * values[0]).sum())
    if params.top_p < 1.0:
        before = values.cumsum(0) - values
        kept = min(kept, int((before < params.top_p * mass).sum()))
    return max(kept, 1)


def _at_share(weights: Tensor, draw: float) -> int:
    """Index whose stretch of the cumulated weights holds `draw` of their sum; never one of weight zero.

    Raises `DrawFailed` where the weights are not finite.
    """
    cumulated = weights.double().cumsum(0)
    total = float(cumulated[-1])
    if not math.isfinite(total):
        raise DrawFailed("the logits, divided by the temperature, have no finite softmax")
    goal = draw * total
    return int(torch.searchsorted(cumulated, goal, right=True).clamp_max(int(weights.nonzero()[-1])))


def _is_plain_greedy(params: SamplingParams) -> bool:
    """Nothing moves the largest logit: the whole batch's argmax is the answer."""
    return params.is_greedy and _leaves_logits(params)


def _is_plain_draw(request: ScheduledRequest) -> bool:
    """Temperature and filters are all there is between the logits and the token."""
    return request.constraint is None and not request.sampling.is_greedy and _leaves_logits(request.sampling)


def _leaves_logits(params: SamplingParams) -> bool:
    """No minimum length, bias or penalty changes them."""
    return (
        params.min_tokens == 0
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )

"""Drawing tokens for many rows at once, by the rules of `sampler.draw_token`.

On a GPU a row drawn by itself costs about eight waits for the device; here all rows together cost two. There is no full
sort: the `_CANDIDATES` most likely tokens hold nearly every top-p, and a row that needs more is left to `draw_token`.
All rows take as many candidates as the widest, so sums may round differently beside other neighbours: not for
`--batch-invariant`.

Shapes: S rows, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagefleet_engine.request import SamplingParams

_CANDIDATES = 1024


def draw_rows(logits_SV: Tensor, params: Sequence[SamplingParams], draws: Sequence[float]) -> list[int | None]:
    """The token of each row whose share of its filtered distribution contains the row's draw, 0 <= draw < 1.

    None for a row that must be drawn by itself, also where it has no finite distribution. No row is greedy.
    """
    column = [[p.temperature] for p in params]
    probabilities_SV = (logits_SV / torch.tensor(column, device=logits_SV.device)).softmax(dim=-1)
    free = [row for row, p in enumerate(params) if p.top_k is None and p.top_p == 1.0 and p.min_p == 0.0]
    bound = [row for row in range(len(params)) if row not in set(free)]
    found: list[int | None] = [None] * len(params)
    if free:
        picked, is_finite = _at_shares(probabilities_SV[free], [draws[row] for row in free])
        _fill(found, free, picked, is_finite)
    if bound:
        tokens, complete = _bounded(probabilities_SV[bound], [params[r] for r in bound], [draws[r] for r in bound])
        _fill(found, bound, tokens, complete)
    return found


def _fill(found: list[int | None], rows: Sequence[int], tokens_S: Tensor, is_known_S: Tensor) -> None:
    """Put the tokens that are known into their rows; the one wait for the device."""
    for row, token, is_known in zip(rows, *torch.stack((tokens_S, is_known_S.long())).tolist(), strict=True):
        found[row] = token if is_known else None


def _bounded(
    probabilities_SV: Tensor, params: Sequence[SamplingParams], draws: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Tokens of rows with top-k, top-p or min-p, and whether the candidates were enough to say so."""
    size, device = probabilities_SV.shape[1], probabilities_SV.device
    wanted = [min(size, p.top_k or _CANDIDATES) for p in params]
    values_SC, ids_SC = probabilities_SV.topk(max(wanted), dim=-1)
    k, top_p, min_p, filtered = torch.tensor(
        [[k, p.top_p, p.min_p, p.top_k is not None] for k, p in zip(wanted, params, strict=True)],
        dtype=values_SC.dtype, device=device,
    ).T[..., None]  # fmt: skip
    within_SC = torch.arange(values_SC.shape[1], device=device) < k
    values_SC = values_SC.masked_fill(~within_SC, 0.0)
    before_SC = values_SC.cumsum(-1) - values_SC
    kept_SC = within_SC & (values_SC >= min_p * values_SC[:, :1])
    mass_S1 = torch.where(filtered > 0, (values_SC * kept_SC).sum(-1, keepdim=True), 1.0)
    if any(p.min_p > 0.0 and p.top_k is None for p in params):
        passing_S1 = (probabilities_SV * (probabilities_SV >= min_p * values_SC[:, :1])).sum(-1, keepdim=True)
        mass_S1 = torch.where((filtered > 0) | (min_p == 0.0), mass_S1, passing_S1)
    kept_SC &= (top_p >= 1.0) | (before_SC < top_p * mass_S1)
    kept_SC[:, 0] = True
    beyond_S1 = values_SC.gather(1, k.long() - 1)  # what is not among the candidates is at most as likely
    enough_S1 = values_SC.sum(-1, keepdim=True) >= top_p * mass_S1
    complete = (filtered > 0) | enough_S1 | (k >= size) | (beyond_S1 < min_p * values_SC[:, :1])
    places, is_finite = _at_shares(values_SC.masked_fill(~kept_SC, 0.0), draws)
    return ids_SC.gather(1, places[:, None])[:, 0], complete[:, 0] & is_finite


def _at_shares(weights_SN: Tensor, draws: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Per row the index whose stretch of the cumulated weights holds its draw, never one of weight zero.

    And whether the row's weights are finite; the index says nothing otherwise.
    """
    cumulated_SN = weights_SN.double().cumsum(-1)
    goals_S1 = torch.tensor(draws, dtype=torch.float64, device=weights_SN.device)[:, None] * cumulated_SN[:, -1:]
    index = torch.arange(weights_SN.shape[1], device=weights_SN.device)
    last_S = torch.where(weights_SN > 0, index, 0).amax(-1)
    found_S = torch.minimum(torch.searchsorted(cumulated_SN, goals_S1, right=True)[:, 0], last_S)
    return found_S, cumulated_SN[:, -1].isfinite()

"""The formulas, against distributions whose divergence is known."""

import math

import numpy as np
import pytest
import torch

from pagefleet_cli.bench.divergence import BLOCK, Scores, compare, join
from tests.cli.bench.parts import TINY


class Head:
    """Stands for a decoder whose activations are the logits already."""

    def logits(self, x):
        return x


def test_two_known_distributions():
    reference = torch.tensor([[0.5, 0.25, 0.25]]).log()
    other = torch.tensor([[0.25, 0.5, 0.25]]).log()
    [scores] = compare(Head(), reference, {"x": other}, [1]).others.values()
    assert scores.mean_kld == pytest.approx(0.25 * math.log(2))
    assert scores.perplexity == pytest.approx(2.0)
    assert scores.agreement == 0.0


def test_a_distribution_against_itself_is_exactly_zero_apart():
    logits = torch.randn(BLOCK + 5, 40, generator=torch.Generator().manual_seed(1))
    [scores] = compare(Head(), logits, {"x": logits.clone()}, [3] * (BLOCK + 5)).others.values()
    assert scores.kld.tolist() == [0.0] * (BLOCK + 5)
    assert scores.agreement == 1.0


def test_logits_are_made_by_the_models_own_norm_and_head():
    hidden = torch.randn(3, 48, generator=torch.Generator().manual_seed(2))
    [scores] = compare(TINY.decoder, hidden, {"x": hidden}, [5, 6, 7]).others.values()
    logprobs = TINY.decoder.logits(hidden).log_softmax(-1)
    want = [-float(logprobs[row, token]) for row, token in enumerate((5, 6, 7))]
    assert scores.surprise.tolist() == pytest.approx(want)


def test_parts_and_joins_keep_the_order():
    numbers = np.arange(4.0)
    scores = Scores(kld=numbers, surprise=numbers + 10, agrees=numbers * 0)
    joined = join([scores.part(2, 4), scores.part(0, 1)])
    assert joined.kld.tolist() == [2.0, 3.0, 0.0]
    assert joined.surprise.tolist() == [12.0, 13.0, 10.0]
    assert joined.num_positions == 3

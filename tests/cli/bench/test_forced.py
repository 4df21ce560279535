"""What is measured is what the engine computes: sealed frames, in chunks, from the prefix cache too."""

import pytest
import torch

from pagefleet_cli.bench.divergence import compare
from pagefleet_cli.bench.forced import Turn, begin_chunking, begin_text, feed, score_turns
from pagefleet_cli.bench.models import make_lab
from pagefleet_cli.bench.rows import Rows
from pagefleet_cli.bench.workers import Here
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.testing import naive_logits, naive_sealed_logits, sealed_groups
from tests.cli.bench.parts import TINY, tokens

SEALED = [precision for precision in Precision if precision is not Precision.BF16]


@pytest.mark.parametrize("precision", SEALED)
def test_every_position_sees_what_the_visibility_rule_says(precision):
    """Against a loop that quantises by the codec alone; its sums run in another order."""
    text = tokens(150)
    lab = make_lab(TINY, num_frames=32, max_num_batched_tokens=48)
    rows = feed(lab, "a", text, precision)
    want = naive_sealed_logits(TINY.decoder, text, sealed_groups(precision, len(text)))
    assert rows.start == 0
    torch.testing.assert_close(TINY.decoder.logits(rows.hidden_ND), want, atol=2e-3, rtol=0)


def test_a_precision_differs_from_bf16_by_far_more_than_that():
    text = tokens(150)
    lab = make_lab(TINY, num_frames=32, max_num_batched_tokens=48)
    bf16, int4 = (TINY.decoder.logits(feed(lab, p, text, p).hidden_ND) for p in (Precision.BF16, Precision.INT4))
    assert float((bf16 - int4).abs().max()) > 0.02


def test_bf16_against_itself_is_zero_and_the_others_are_not():
    scores = begin_text(Here(TINY), TINY, tokens(200), list(Precision), budget=64)()
    assert scores[Precision.BF16].kld.max() == scores[Precision.BF16].kld.min() == 0.0
    assert scores[Precision.BF16].agreement == 1.0
    klds = {precision: scores[precision].mean_kld for precision in SEALED}
    assert all(value > 0 for value in klds.values())
    assert klds[Precision.INT8] < klds[Precision.FP8_E4M3] < klds[Precision.FP8_E5M2]


def test_nothing_diverges_before_the_first_group_is_full():
    """FP8 groups have 32 tokens; a query sees its own group raw."""
    kld = begin_text(Here(TINY), TINY, tokens(100), [Precision.FP8_E4M3])()[Precision.FP8_E4M3].kld
    assert abs(kld[:32]).max() < 1e-9
    assert kld[32:].max() > 1e-7


def test_perplexity_is_the_models_own():
    text = tokens(120)
    found = begin_text(Here(TINY), TINY, text, [])()[Precision.BF16]
    logprobs = naive_logits(TINY.decoder, text[:-1]).log_softmax(-1)
    surprise = [-float(logprobs[row, token]) for row, token in enumerate(text[1:])]
    assert float(found.surprise.mean()) == pytest.approx(sum(surprise) / len(surprise), abs=2e-3)


def test_other_chunks_alone_change_next_to_nothing():
    assert abs(begin_chunking(Here(TINY), TINY, tokens(300))().mean_kld) < 1e-6


def test_turns_come_from_the_prefix_cache_with_the_same_scores():
    text = tokens(260)
    turns = [Turn(prompt=text[:90], answer=text[90:110]), Turn(prompt=text[:200], answer=text[200:260])]
    found = list(score_turns(TINY, turns, [Precision.FP8_E4M3]))
    assert found[0][1] == 0
    assert found[1][1] >= 64
    lab = make_lab(TINY, num_frames=64)
    bf16, fp8 = (feed(lab, p, text[:259], p).hidden_ND[-60:] for p in (Precision.BF16, Precision.FP8_E4M3))
    [want] = compare(TINY.decoder, bf16, {"": fp8}, text[200:260]).others.values()
    assert found[1][0][Precision.FP8_E4M3].mean_kld == pytest.approx(want.mean_kld, rel=1e-3)


def test_rows_of_a_preempted_request_are_refused():
    lab = make_lab(TINY, num_frames=32)
    feed(lab, "a", tokens(40), Precision.BF16)
    lab.executor._parts["a"] = [Rows(0, torch.zeros(3, 48))] * 2
    with pytest.raises(ValueError, match="request a was preempted: its rows go on at 0, not at 3"):
        lab.executor.take("a")

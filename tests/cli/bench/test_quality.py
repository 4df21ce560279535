"""The whole measurement in its short form, its table, its file and its picture."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from pagefleet_cli.bench.plot import write_plot
from pagefleet_cli.bench.quality import Extent, measure
from pagefleet_cli.bench.quality_report import print_quality
from pagefleet_cli.bench.results import TARGETS, TextScore, write_json
from pagefleet_cli.bench.workers import Here, open_workers
from pagefleet_cli.errors import CommandError
from pagefleet_engine.contract.precision import Precision
from tests.cli.bench.parts import TEXT, TINY, tiny_model

ASKED = ("Who?", "Why?")
EXTENT = Extent(num_tokens=384, window=128, long_context=400, num_conversations=2, answer_tokens=12)


@pytest.fixture(scope="module")
def result():
    said = []
    found = measure(
        TINY, Here(TINY), TEXT, "a fox", tuple(TARGETS), EXTENT, questions=("Who?", "Why?"), say=said.append
    )
    assert said[0] == "text: window 1 of 3: done"
    return found


def test_the_extent_is_what_was_asked_for(result):
    assert (result.num_tokens, result.window, result.dtype) == (384, 128, "float32")
    assert [score.precision for score in result.scores] == list(TARGETS)
    assert (len(result.positions), result.positions[-1]) == (16, 399)
    assert [len(curve.kld) for curve in result.by_position] == [16] * 4
    assert [len(curve.kld) for curve in result.by_turn] == [2] * 4
    assert result.turn_tokens[0] < result.turn_tokens[1]


def test_finer_precisions_diverge_less(result):
    klds = {score.precision: score.kld for score in result.scores}
    assert 0 < klds[Precision.INT8] < klds[Precision.FP8_E4M3] < klds[Precision.FP8_E5M2]


def test_the_table_has_a_row_for_each_precision(result):
    out = io.StringIO()
    print_quality(Console(file=out, width=160), result)
    text = out.getvalue()
    assert "tiny, float32 activations, 384 tokens of a fox" in text
    assert all(precision in text for precision in Precision)
    assert "KLD by turn, 2 conversations, nat" in text


def test_the_file_has_the_numbers_and_the_verdicts(result, tmp_path):
    write_json(tmp_path / "q.json", result.as_json())
    found = json.loads((tmp_path / "q.json").read_text())
    assert found["scores"][0]["precision"] == "fp8_e4m3"
    assert found["scores"][0]["kld"] == result.scores[0].kld
    assert {entry["meets_target"] for entry in found["scores"]} <= {True, False}


def test_the_picture_is_written(result, tmp_path):
    write_plot(tmp_path / "q.svg", result)
    assert (tmp_path / "q.svg").read_text().startswith("<?xml")
    with pytest.raises(CommandError, match=r"--plot /nowhere/q\.svg: No such file or directory"):
        write_plot(Path("/nowhere/q.svg"), result)


def test_parts_can_be_left_out():
    extent = replace(EXTENT, num_tokens=128, long_context=0, num_conversations=0)
    found = measure(TINY, Here(TINY), TEXT, "a fox", [Precision.INT8], extent, questions=("Who?",), say=lambda _: None)
    assert (found.positions, found.by_position, found.by_turn) == ((), (), ())
    out = io.StringIO()
    print_quality(Console(file=out, width=160), found)
    assert "position" not in out.getvalue()


REFUSED = {
    "a window beyond the context": (replace(EXTENT, window=512), "the model's context has 512 tokens; use fewer"),
    "a text that is too short": (
        replace(EXTENT, num_tokens=5000),
        "--text has 1240 tokens and 5121 are needed: lower --tokens",
    ),
}


@pytest.mark.parametrize(("extent", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(extent, says):
    with pytest.raises(CommandError, match=says):
        measure(TINY, Here(TINY), TEXT, "a fox", [], extent, questions=(), say=lambda _: None)


def score(precision, kld, change):
    return TextScore(
        precision=precision, kld=kld, kld_p99=0.0, perplexity=10.0, perplexity_change=change, agreement=1.0
    )


VERDICTS = {
    "both bounds are kept": (score(Precision.FP8_E4M3, 0.005, 0.004), True),
    "the divergence is above its bound": (score(Precision.FP8_E4M3, 0.0051, 0.0), False),
    "the perplexity is above its bound": (score(Precision.FP8_E4M3, 0.001, 0.0041), False),
    "a bound that nobody gave is no bound": (score(Precision.INT4, 1.0, 0.02), True),
    "nothing was promised": (score(Precision.BF16, 0.0, 0.0), None),
}


@pytest.mark.parametrize(("found", "want"), VERDICTS.values(), ids=VERDICTS.keys())
def test_a_verdict_follows_the_targets(found, want):
    assert found.meets_target is want


def test_workers_find_the_same():
    extent = replace(EXTENT, num_tokens=256, long_context=0, num_conversations=1)
    with open_workers(tiny_model, TINY, 2) as workers:
        found = measure(TINY, workers, TEXT, "a fox", [Precision.INT4], extent, questions=("Who?",), say=lambda _: None)
    want = measure(TINY, Here(TINY), TEXT, "a fox", [Precision.INT4], extent, questions=("Who?",), say=lambda _: None)
    assert replace(found, seconds=0.0) == replace(want, seconds=0.0)

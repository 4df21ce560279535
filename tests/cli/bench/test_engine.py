"""The comparison of memory: what a pool holds, what is wasted of it, and the real engine under load."""

import io
import json

import pytest
from rich.console import Console

from pagefleet_cli.bench.capacity import Sizes, held_and_wasted, measure_holding
from pagefleet_cli.bench.engine import measure_engine
from pagefleet_cli.bench.engine_report import print_engine, served_rows
from pagefleet_cli.bench.modes import CONTIGUOUS, MODES, PAGED_BF16, PAGED_FP8, PAGED_INT4
from pagefleet_cli.bench.throughput import Load, Served, serve
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_kernels.layout import FrameLayout
from tests.cli.bench.parts import TEXT, TINY, tokens

LAYOUT = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64)
SIZES = Sizes(layout=LAYOUT, num_frames=256, max_model_len=1024, num_prompt=300, num_answer=100)
LOAD = Load(num_requests=6, num_prompt=40, num_answer=24, per_second=1000.0, num_frames=12, max_model_len=96)


def test_contiguous_runs_as_many_as_it_can_reserve_for():
    sizes = {"num_frames": 256, "block_size": 16, "most": 99}
    assert CONTIGUOUS.max_num_seqs(max_model_len=1024, **sizes) == 4
    assert CONTIGUOUS.max_num_seqs(max_model_len=1025, **sizes) == 3
    assert PAGED_BF16.max_num_seqs(max_model_len=1024, **sizes) == 99


def test_the_same_bytes_hold_more_with_every_step():
    held = [measure_holding(SIZES, mode, steps=400) for mode in MODES]
    assert [one.mode for one in held] == ["contiguous", "paged bf16", "paged fp8", "paged int4"]
    assert held[0].at_most == 4
    at_once = [one.at_once for one in held]
    assert at_once == sorted(at_once)
    assert at_once[1] > 2 * at_once[0]
    assert held[0].waste > held[0].usage / 2
    assert all(one.waste < 0.1 for one in held[1:])


def running(mode, num_tokens):
    config = SchedulerConfig(num_frames=64, max_num_seqs=4, max_num_batched_tokens=2048, max_model_len=512)
    scheduler = Scheduler(config, LAYOUT)
    sampling = SamplingParams(max_tokens=10)
    prompt = [1] * num_tokens
    scheduler.add(Request(request_id="a", prompt_token_ids=prompt, sampling=sampling, precision=mode.precision))
    scheduler.update(scheduler.schedule(), {"a": [1]})
    return scheduler


UNUSED = LAYOUT.frame_bytes - LAYOUT.payload_bytes - 8 * 30 * 3
TOKEN = LAYOUT.payload_bytes // 16
# (mode, tokens) -> bytes held, bytes of them without a token
WASTE = {
    "contiguous: the whole reservation but the tokens": (CONTIGUOUS, 100, 512 * TOKEN, 412 * TOKEN),
    "BF16: the rest of the last block": (PAGED_BF16, 100, 7 * LAYOUT.frame_bytes, 12 * TOKEN + 7 * UNUSED),
    "FP8: 3 sealed groups of 32, and 4 tokens in a block": (
        PAGED_FP8,
        100,
        4 * LAYOUT.frame_bytes,
        12 * TOKEN + 4 * UNUSED,
    ),
    "FP8, full: no open frame": (PAGED_FP8, 96, 3 * LAYOUT.frame_bytes, 3 * UNUSED),
}


@pytest.mark.parametrize(("mode", "num_tokens", "held", "wasted"), WASTE.values(), ids=WASTE.keys())
def test_waste_is_counted_in_bytes(mode, num_tokens, held, wasted):
    sizes = Sizes(layout=LAYOUT, num_frames=64, max_model_len=512)
    found = held_and_wasted(running(mode, num_tokens), sizes, mode)
    total = 64 * LAYOUT.frame_bytes
    assert found == (pytest.approx(held / total), pytest.approx(wasted / total))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_real_engine_answers_every_request(mode):
    found = serve(TINY, tokens(400), mode, LOAD)
    assert round(found.tokens_per_s * found.seconds) == 6 * 24
    assert 0 < found.at_once <= (2 if mode is CONTIGUOUS else 6)
    assert found.first_token_s > 0


def served(mode, speed, cpu_speed):
    rest = {"at_once": 1.0, "first_token_s": 2.0, "preemptions": 0, "seconds": 1.0}
    return Served(mode=mode.name, tokens_per_s=speed, tokens_per_cpu_s=cpu_speed, **rest)


def test_speeds_are_multiples_of_the_same_rounds_contiguous_one():
    rounds = [(CONTIGUOUS, 10.0, 8.0), (PAGED_FP8, 25.0, 20.0), (CONTIGUOUS, 20.0, 10.0), (PAGED_FP8, 30.0, 20.0)]
    rows = served_rows([served(*one) for one in rounds])
    assert [row[2] for row in rows] == ["1.00", "2.50", "1.00", "1.50"]
    assert [row[4] for row in rows] == ["1.00", "2.50", "1.00", "2.00"]


def test_the_report_has_every_mode_and_every_verdict():
    result = measure_engine(TINY, SIZES, TEXT, rounds=1, steps=400, say=lambda _: None, load=LOAD)
    out = io.StringIO()
    print_engine(Console(file=out, width=160), result)
    text = out.getvalue()
    assert all(text.count(mode.name) >= 2 for mode in MODES)
    assert "waste in paged fp8 < 4%:" in text
    found = json.loads(json.dumps(result.as_json()))
    assert set(found["targets"]) == {"paged fp8 >= 1.9 x paged bf16", "paged int4 >= 3.2 x paged bf16"} | {
        "waste in paged fp8 < 4%"
    }
    assert result.ratio(PAGED_INT4.name, CONTIGUOUS.name) > 2

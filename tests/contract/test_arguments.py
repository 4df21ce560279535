"""The engine's command line: what is rendered parses back to the same value, and bad input is one clear line."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.arguments import (
    TOOL_CALL_PARSERS,
    ArgumentError,
    EngineArguments,
    build_parser,
    flag_name,
    parse,
)
from pagefleet_engine.contract.precision import Precision

FULL = EngineArguments(
    model="/models/a",
    served_model_name=("a", "b"),
    max_model_len=2048,
    max_num_seqs=64,
    max_num_active_seqs=32,
    kv_cache_dtype=Precision.FP8_E4M3,
    kv_cache_memory_bytes=1 << 30,
    gpu_memory_utilization=0.8,
    enable_prefix_caching=True,
)


def test_rendered_arguments_are_spelled_as_in_vllm():
    assert FULL.render() == [
        *("--model", "/models/a", "--served-model-name", "a", "b", "--max-model-len", "2048"),
        *("--max-num-seqs", "64", "--max-num-active-seqs", "32", "--kv-cache-dtype", "fp8_e4m3"),
        *("--kv-cache-memory-bytes", "1073741824", "--gpu-memory-utilization", "0.8", "--enable-prefix-caching"),
    ]


@given(
    st.builds(
        EngineArguments,
        model=st.just("/m"),
        served_model_name=st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), max_size=3).map(tuple),
        max_num_seqs=st.integers(1, 4096),
        max_model_len=st.none() | st.integers(16, 1 << 20),
        kv_cache_dtype=st.sampled_from(Precision),
        swap_space=st.floats(0, 4096),
        block_size=st.sampled_from([8, 16, 32, 64]),
        batch_invariant=st.booleans(),
        tool_call_parser=st.sampled_from(TOOL_CALL_PARSERS),
        seed=st.integers(0, 2**63 - 1),
    )
)
def test_what_is_rendered_parses_back(arguments):
    assert parse(arguments.render()) == arguments


def test_every_field_has_a_flag_in_the_help():
    text = build_parser().format_help()
    assert [spec.name for spec in fields(EngineArguments) if flag_name(spec.name) not in text] == []


BAD = {
    "no model": ([], "the following arguments are required: --model; see pagefleet-engine --help"),
    "unknown flag": (["--model", "m", "--foo"], "unrecognized arguments: --foo; see pagefleet-engine --help"),
    "no number": (
        ["--model", "m", "--port", "x"],
        "argument --port: invalid int value: 'x'; see pagefleet-engine --help",
    ),
    "below the bound": (["--model", "m", "--max-num-seqs", "0"], "--max-num-seqs 0: must be at least 1"),
    "above the bound": (["--model", "m", "--port", "65536"], "--port 65536: must be at most 65535"),
    "not a number at all": (["--model", "m", "--swap-space", "nan"], "--swap-space nan: must be at least 0"),
    "no such precision": (
        ["--model", "m", "--kv-cache-dtype", "fp4"],
        "argument --kv-cache-dtype: 'fp4' is no precision: use bf16, fp8_e4m3, fp8_e5m2, int8, int4; "
        "see pagefleet-engine --help",
    ),
    "odd block size": (["--model", "m", "--block-size", "24"], "--block-size 24: use 8, 16, 32 or 64"),
    "no such form of tool calls": (
        ["--model", "m", "--tool-call-parser", "pythonic"],
        "--tool-call-parser pythonic: use one of auto, hermes, llama3_json, mistral",
    ),
    "cap above capacity": (
        ["--model", "m", "--max-num-seqs", "4", "--max-num-active-seqs", "5"],
        "--max-num-active-seqs 5 is above the capacity --max-num-seqs 4: lower it, or start with a larger capacity",
    ),
}


@pytest.mark.parametrize(("argv", "want"), BAD.values(), ids=BAD.keys())
def test_a_bad_command_line_is_one_line_that_names_the_flag(argv, want):
    with pytest.raises(ArgumentError) as caught:
        parse(argv)
    assert str(caught.value) == want

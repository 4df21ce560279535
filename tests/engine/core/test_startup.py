"""What can be wrong with arguments and memory at start-up, with the numbers that a person needs."""

import pytest
import torch

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.runtime.host import _machine_available, available_bytes, quota_cores, usable_cores
from pagefleet_engine.startup import check_precisions, pool_frames, resolve_max_model_len, swap_bytes
from pagefleet_engine.testing import TINY, tiny_core, tiny_decoder
from pagefleet_engine.warming import warm_up
from pagefleet_kernels.layout import FrameLayout

LAYOUT = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64)
FRAME = LAYOUT.frame_bytes


def arguments(**kwargs):
    return EngineArguments(model="m.gguf", **kwargs)


def test_a_byte_budget_gives_whole_frames():
    assert pool_frames(arguments(kv_cache_memory_bytes=300 * FRAME + 5), LAYOUT, 2048, free_bytes=0) == 300


def test_a_budget_below_one_sequence_is_refused_with_the_bytes_it_takes():
    with pytest.raises(StartupError) as error:
        pool_frames(arguments(kv_cache_memory_bytes=100 * FRAME), LAYOUT, 2048, free_bytes=0)
    assert str(error.value) == (
        f"--kv-cache-memory-bytes {100 * FRAME} holds 100 frames, but one sequence of 2048 tokens in bf16 takes 128: "
        f"give {128 * FRAME} bytes, or lower --max-model-len"
    )


def test_fp8_needs_about_half():
    budget = arguments(kv_cache_memory_bytes=66 * FRAME, kv_cache_dtype=Precision.FP8_E4M3)
    assert pool_frames(budget, LAYOUT, 2048, free_bytes=0) == 66


@pytest.mark.parametrize(
    ("gib", "free_gib", "want_gib"), [(4, 16, 4), (4, 8, 2), (0, 8, 0)], ids=["all", "a quarter", "none"]
)
def test_swap_space_is_at_most_a_quarter_of_what_is_free(gib, free_gib, want_gib, caplog):
    assert swap_bytes(arguments(swap_space=gib), free_gib * 2**30) == want_gib * 2**30
    told = [record.getMessage() for record in caplog.records]
    assert told == ["--swap-space 4: 2.00 GiB are used, a quarter of the memory that is free"] * (want_gib < gib)


def test_a_share_of_free_memory_stops_at_what_the_capacity_can_fill():
    wide = arguments(gpu_memory_utilization=0.5, max_num_seqs=4)
    assert pool_frames(wide, LAYOUT, 2048, free_bytes=2 * 1000 * FRAME) == 4 * 128
    assert pool_frames(wide, LAYOUT, 2048, free_bytes=2 * 200 * FRAME) == 200


def test_too_little_free_memory_names_the_share():
    with pytest.raises(StartupError, match=r"--gpu-memory-utilization 0\.9 of 1000 free bytes holds 0 frames"):
        pool_frames(arguments(), LAYOUT, 2048, free_bytes=1000)


def test_the_context_is_the_models_unless_a_shorter_one_is_asked_for():
    assert resolve_max_model_len(arguments(), TINY) == 512
    assert resolve_max_model_len(arguments(max_model_len=100), TINY) == 100
    with pytest.raises(StartupError, match="--max-model-len 513: this model was trained for 512"):
        resolve_max_model_len(arguments(max_model_len=513), TINY)


def test_fp32_frames_cannot_be_sealed():
    check_precisions(arguments(), {Precision.BF16}, torch.float32)
    check_precisions(arguments(kv_cache_dtype=Precision.INT8), set(Precision), torch.bfloat16)
    with pytest.raises(StartupError, match="leave int8 out of --kv-cache-dtype"):
        check_precisions(arguments(kv_cache_dtype=Precision.INT8), {Precision.INT8}, torch.float32)
    with pytest.raises(StartupError, match="leave int4 out of --runtime-config-file"):
        check_precisions(arguments(), {Precision.BF16, Precision.INT4}, torch.float32)


def test_the_pool_holds_one_sequence_in_every_precision_that_the_routes_start_with():
    fp8 = arguments(kv_cache_dtype=Precision.FP8_E4M3, kv_cache_memory_bytes=100 * FRAME)
    assert pool_frames(fp8, LAYOUT, 2048, 0, {Precision.FP8_E4M3}) == 100
    with pytest.raises(StartupError, match="one sequence of 2048 tokens in bf16 takes 128: give"):
        pool_frames(fp8, LAYOUT, 2048, 0, {Precision.FP8_E4M3, Precision.BF16})


def test_warming_up_answers_one_token_and_leaves_nothing():
    core = tiny_core()
    warm_up(core)
    assert not core.has_work
    assert core.stats().frames["free"] == 32


def test_weights_of_nan_do_not_become_ready():
    decoder = tiny_decoder()
    decoder.norm.weight[3] = torch.nan
    with pytest.raises(StartupError, match="cannot answer a single token"):
        warm_up(tiny_core(decoder=decoder))


def test_free_memory_is_read_in_bytes():
    assert _machine_available("MemTotal: 100 kB\nMemAvailable:   2048 kB\n") == 2048 * 1024
    assert available_bytes() > 0


V2 = {"memory.max": "1000000", "memory.current": "700000"}
V1 = {"memory/memory.limit_in_bytes": "1000000", "memory/memory.usage_in_bytes": "700000"}
CGROUPS = {
    "no cgroup: the machine's": ({}, 2048 * 1024),
    "v2: limit less use": (V2, 300_000),
    "v2 without a limit": (V2 | {"memory.max": "max"}, 2048 * 1024),
    "v2: a limit above what the machine has": (V2 | {"memory.max": "100000000"}, 2048 * 1024),
    "v2: pages of files that nobody uses are free": (
        V2 | {"memory.stat": "anon 100000\nfile 600000\ninactive_file 500000\nactive_file 100000\n"},
        800_000,
    ),
    "v2: more cache than use is all of it": (V2 | {"memory.stat": "inactive_file 900000\n"}, 1_000_000),
    "v2: use above the limit": (V2 | {"memory.current": "1000001"}, 0),
    "v2: a line without a number": (V2 | {"memory.stat": "inactive_file\ninactive_file x\n"}, 300_000),
    "v1: limit less use": (V1, 300_000),
    "v1: the total of the group and those below it": (
        V1 | {"memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500000\n"},
        800_000,
    ),
    "v1: no limit is a very large number": (
        V1 | {"memory/memory.limit_in_bytes": "9223372036854771712"},
        2048 * 1024,
    ),
}


@pytest.mark.parametrize(("files", "want"), CGROUPS.values(), ids=CGROUPS.keys())
def test_memory_that_a_cgroup_leaves(files, want, tmp_path):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4096 kB\nMemAvailable:   2048 kB\n")
    assert available_bytes(meminfo, tmp_path) == want


QUOTAS = {
    "no quota": (["max", "100000"], 2**16),
    "two cores": (["200000", "100000"], 2),
    "half a core is one": (["50000", "100000"], 1),
    "a core and a half are two": (["150000", "100000"], 2),
    "an unreadable file": ([], 2**16),
    "a period of nothing": (["100000", "0"], 2**16),
}


@pytest.mark.parametrize(("words", "want"), QUOTAS.values(), ids=QUOTAS.keys())
def test_how_many_cores_a_quota_leaves(words, want):
    assert quota_cores(words) == want
    assert usable_cores() >= 1

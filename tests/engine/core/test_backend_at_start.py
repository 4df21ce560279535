"""Device and memory at start: what the ranks are told on a GPU, and a whole engine forced onto the Triton kernels."""

from dataclasses import replace

import pytest

from e2e.tiny_model import files
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.parallel import Shard
from pagefleet_engine.runtime.backend import CPU, Attention, Backend
from pagefleet_engine.startup import build_core, longest_kv, plan_runner, scheduler_config
from pagefleet_engine.testing import TINY

GIB = 2**30
GPU = Backend(attention=Attention.TRITON, device_type="cuda", device_name="NVIDIA H200", is_paged=True)


def arguments(**kwargs):
    return EngineArguments(model="m.gguf", max_model_len=256, max_num_seqs=4, **kwargs)


def test_on_a_gpu_the_ranks_measure_their_pool_and_swap_comes_from_host_memory():
    plan = plan_runner(arguments(gpu_memory_utilization=0.8, swap_space=1.0), TINY, (257,), 8 * GIB, GPU)
    assert (plan.backend, plan.num_host_frames) == (GPU, GIB // 2304)
    share = plan.share
    assert (share.utilization, share.num_tokens, share.num_sequences) == (0.8, 512, 4)
    assert (share.least_frames, share.most_frames, share.widest) == (16, 64, Precision.BF16)


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_pool_of_known_bytes_is_not_measured(backend):
    plan = plan_runner(arguments(kv_cache_memory_bytes=100 * 2304), TINY, (257,), 8 * GIB, backend)
    assert (plan.share, plan.num_frames) == (None, 100)


def test_a_cpu_takes_its_share_of_what_is_free():
    plan = plan_runner(arguments(gpu_memory_utilization=0.5), TINY, (257,), 80 * 2304, CPU)
    assert (plan.share, plan.num_frames) == (None, 40)


A100 = replace(GPU, device_name="A100", without=frozenset({Precision.FP8_E4M3}))


def test_a_gpu_that_cannot_convert_a_precision_is_not_started_with_it():
    with pytest.raises(StartupError) as error:
        plan_runner(arguments(kv_cache_dtype=Precision.FP8_E4M3), TINY, (257,), 8 * GIB, A100)
    assert str(error.value) == "--kv-cache-dtype: A100 cannot convert fp8_e4m3: use one of bf16, fp8_e5m2, int8, int4"


def test_nor_is_it_offered_to_routes_or_made_by_demotion():
    given = arguments(kv_cache_memory_bytes=100 * 2304)
    plan = plan_runner(given, TINY, (257,), 8 * GIB, A100)
    layout = plan.layout(TINY, Shard())
    assert list(longest_kv(plan, layout)) == [p for p in Precision if p is not Precision.FP8_E4M3]
    assert scheduler_config(given, plan, "m").batch_invariant
    assert not scheduler_config(given, replace(plan, backend=GPU), "m").batch_invariant


@pytest.fixture
def folder(tmp_path):
    for name, content in files().items():
        (tmp_path / name).write_bytes(content)
    return str(tmp_path)


def test_an_engine_forced_onto_triton_says_so_and_answers(folder, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setenv("PAGEFLEET_ATTENTION_BACKEND", "triton")
    built = build_core(EngineArguments(model=folder, max_model_len=64, kv_cache_memory_bytes=2**18))
    built.core.close()
    assert (built.model_info.attention_backend, built.model_info.device) == ("triton", "cpu")
    assert caplog.messages[-1].endswith("attention by triton on cpu")


def test_an_unknown_backend_is_refused_before_weights_are_read(folder, monkeypatch):
    monkeypatch.setenv("PAGEFLEET_ATTENTION_BACKEND", "flash")
    with pytest.raises(StartupError, match="PAGEFLEET_ATTENTION_BACKEND=flash: use triton or reference"):
        build_core(EngineArguments(model=folder))

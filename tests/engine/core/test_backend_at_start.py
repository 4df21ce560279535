"""Device and memory at start: what the ranks are told on a GPU, and a whole engine forced onto the Triton kernels."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from e2e.tiny_model import files
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.packed import BlockWeights, pack
from pagefleet_engine.layers.parallel import Shard
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.backend import CPU, Attention, Backend
from pagefleet_engine.runtime.host_share import keeps_four_bits, model_bytes, weight_bytes
from pagefleet_engine.runtime.loading import make_sampler
from pagefleet_engine.startup import build_core, longest_kv, plan_runner, scheduler_config
from pagefleet_engine.testing import TINY, RandomCheckpoint
from pagefleet_engine.weights.loader import load_decoder
from pagefleet_kernels.layout import FrameLayout

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


def test_rows_are_drawn_together_on_a_gpu_unless_their_bits_may_not_depend_on_each_other():
    def in_batches(backend, *, batch_invariant):
        given = arguments(kv_cache_memory_bytes=100 * 2304, batch_invariant=batch_invariant)
        return make_sampler(plan_runner(given, TINY, (257,), 8 * GIB, backend)).in_batches

    assert in_batches(GPU, batch_invariant=False)
    assert not in_batches(GPU, batch_invariant=True)
    assert not in_batches(CPU, batch_invariant=False)


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_a_pool_of_known_bytes_is_not_measured(backend):
    plan = plan_runner(arguments(kv_cache_memory_bytes=100 * 2304), TINY, (257,), 8 * GIB, backend)
    assert (plan.share, plan.num_frames) == (None, 100)


def test_a_cpu_takes_its_share_of_what_is_free_less_the_weights_and_a_step():
    given = arguments(gpu_memory_utilization=0.5)
    beside = model_bytes(TINY, given, itemsize=2, num_positions=256, is_packed=False)
    plan = plan_runner(given, TINY, (257,), 2 * (beside + 40 * 2304), CPU)
    assert (plan.share, plan.num_frames) == (None, 40)


QWEN_1_5B = ModelConfig(
    architecture="qwen2",
    num_layers=28,
    hidden_size=1536,
    num_heads=12,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=8960,
    vocab_size=151_936,
    context_len=32_768,
    rope_base=1e6,
    norm_eps=1e-6,
    qkv_bias=True,
)
WEIGHTS = 1_543_714_304 * 2


@pytest.mark.parametrize("swap_gib", [0.0, 0.25, 64.0])
@pytest.mark.parametrize("size", [1, 2])
def test_weights_pool_and_swapped_frames_fit_together_into_the_memory_there_is(swap_gib, size):
    given = EngineArguments(model="m", max_model_len=4096, swap_space=swap_gib, tensor_parallel_size=size)
    plan = plan_runner(given, QWEN_1_5B, (0,), 6 * GIB, CPU)
    frames = size * plan.layout(QWEN_1_5B, Shard(size=size)).frame_bytes * (plan.num_frames + plan.num_host_frames)
    assert plan.num_frames >= 4096 // 16
    assert WEIGHTS + frames <= 0.9 * 6 * GIB


def test_a_model_that_leaves_no_room_is_refused_with_what_it_takes():
    given = EngineArguments(model="m", max_model_len=4096)
    beside = model_bytes(QWEN_1_5B, given, itemsize=2, num_positions=4096, is_packed=False)
    with pytest.raises(StartupError) as error:
        plan_runner(given, QWEN_1_5B, (0,), 3 * GIB, CPU)
    assert str(error.value) == (
        f"--gpu-memory-utilization 0.9 of {3 * GIB} free bytes, less {beside} for the weights, one step and "
        "--swap-space, holds 0 frames, but one sequence of 4096 tokens in bf16 takes 256: give 117571584 bytes, "
        "or lower --max-model-len"
    )


def test_weights_are_counted_once_in_their_dtype_and_once_more_in_four_bits():
    assert weight_bytes(QWEN_1_5B, itemsize=2, is_packed=False) == WEIGHTS
    assert weight_bytes(QWEN_1_5B, itemsize=4, is_packed=False) == 2 * WEIGHTS
    # the biased q, k and v are not packed; a block of 32 takes 16 bytes of codes and 4 of scale and zero
    projections = 28 * (1536 * 1536 + 3 * 1536 * 8960)
    assert weight_bytes(QWEN_1_5B, itemsize=2, is_packed=True) == WEIGHTS + projections * 20 // 32


def test_a_packed_copy_makes_the_pool_smaller_where_the_loader_keeps_one():
    def frames(dtype, in_four_bits):
        given = EngineArguments(model="m", max_model_len=4096, max_num_seqs=256, dtype=dtype)
        return plan_runner(given, QWEN_1_5B, (0,), 8 * GIB, CPU, in_four_bits=in_four_bits).num_frames

    packed = weight_bytes(QWEN_1_5B, itemsize=2, is_packed=True) - WEIGHTS
    assert frames("auto", in_four_bits=False) - frames("auto", in_four_bits=True) == pytest.approx(
        packed / FrameLayout(num_layers=28, num_kv_heads=2, head_dim=128).frame_bytes, abs=1
    )
    assert frames("float32", in_four_bits=False) == frames("float32", in_four_bits=True)


def tensors(part):
    """Every tensor below a decoder or a layer of it."""
    if isinstance(part, torch.Tensor):
        return [part]
    parts = (
        part if isinstance(part, tuple) else [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else []
    )
    return [tensor for inner in parts for tensor in tensors(inner)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_the_loader_holds_is_what_was_counted(dtype):
    config = replace(TINY, tied_embeddings=False, qk_norm=True, qkv_bias=True)
    decoder = load_decoder(RandomCheckpoint(config), dtype=dtype, device=torch.device("cpu"), num_positions=64)
    held = {tensor.data_ptr(): tensor.nbytes for tensor in tensors(decoder)}
    assert sum(held.values()) == weight_bytes(config, itemsize=dtype.itemsize, is_packed=False)


class InFourBits(RandomCheckpoint):
    """As a file that keeps some of its projections in four bits."""

    def block_weights(self, name):
        rows, width = self.shapes[name]
        scale = torch.ones((rows, width // 32))
        return BlockWeights(torch.ones((rows, width)).byte(), scale, scale) if "down_proj" in name else None


def test_a_file_in_four_bits_is_known_by_its_first_layer():
    checkpoint = InFourBits(TINY)
    name = "model.layers.0.mlp.down_proj.weight"
    linear = pack(checkpoint.block_weights(name), checkpoint.tensor(name).bfloat16())
    assert linear.packed.nbytes + linear.scale_zero_BO2.nbytes == 48 * 64 * 20 // 32
    assert keeps_four_bits(checkpoint)
    assert not keeps_four_bits(RandomCheckpoint(TINY))


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

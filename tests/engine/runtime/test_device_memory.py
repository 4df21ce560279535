"""How large a pool a GPU gets, by arithmetic with exact numbers."""

from dataclasses import replace

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.device_memory import DeviceMemory, PoolShare, check_frames, pool_bytes, workspace_bytes
from pagefleet_engine.runtime.kv_cache import frame_layout
from pagefleet_engine.runtime.profiling import measured_frames
from pagefleet_engine.testing import TINY, tiny_decoder

GIB = 2**30
LLAMA_8B = ModelConfig(
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    context_len=8192,
    rope_base=500_000.0,
    norm_eps=1e-5,
)
SHARE = PoolShare(
    utilization=0.9,
    num_tokens=2048,
    num_sequences=64,
    max_model_len=8192,
    widest=Precision.BF16,
    least_frames=512,
    most_frames=32768,
)


def test_the_pool_gets_the_share_less_others_model_activations_workspace_and_graphs():
    memory = DeviceMemory(total=140 * GIB, free=123 * GIB, reserved=16 * GIB, peak=18 * GIB)
    others, graphs = 1 * GIB, GIB // 2
    assert pool_bytes(memory, 0.9, 2 * GIB) == 126 * GIB - others - 18 * GIB - 2 * GIB - graphs


def test_memory_of_other_processes_is_not_ours():
    alone = DeviceMemory(total=80 * GIB, free=60 * GIB, reserved=20 * GIB, peak=20 * GIB)
    shared = alone._replace(free=50 * GIB)
    assert pool_bytes(alone, 0.9, 0) - pool_bytes(shared, 0.9, 0) == 10 * GIB


def test_a_device_that_is_too_small_leaves_less_than_nothing():
    assert pool_bytes(DeviceMemory(total=16 * GIB, free=GIB, reserved=15 * GIB, peak=15 * GIB), 0.9, 0) < 0


def test_attention_needs_one_part_for_each_share_of_a_sequence_or_each_precision_of_a_chunk():
    part = 4 * 130 * 32
    assert workspace_bytes(LLAMA_8B, SHARE, 1) == part * 64 * 65
    assert workspace_bytes(LLAMA_8B, SHARE, 5) == part * 64 * 321
    assert workspace_bytes(LLAMA_8B, replace(SHARE, num_tokens=32768), 5) == part * 32768 * 5


def test_frames_are_checked_against_one_sequence_and_bounded_by_all():
    assert check_frames(40_000, SHARE, 2048) == 32768
    assert check_frames(600, SHARE, 2048) == 600
    with pytest.raises(StartupError) as error:
        check_frames(500, SHARE, 2048)
    assert str(error.value) == (
        "--gpu-memory-utilization 0.9 leaves 500 frames beside the model and its largest batch, but one sequence of "
        "8192 tokens in bf16 takes 512: free 24576 bytes, or lower --max-model-len"
    )


class FakeProbe:
    """A device of fixed figures, on which the profiling run really happens."""

    def __init__(self, memory):
        self._memory = memory
        self.num_runs = 0

    def measure(self, run, /):
        run()
        self.num_runs += 1
        return self._memory


def test_the_largest_batch_runs_and_what_it_leaves_becomes_frames():
    decoder = tiny_decoder()
    layout = frame_layout(TINY, block_size=16, raw_dtype=torch.bfloat16)
    share = replace(SHARE, num_tokens=700, num_sequences=900, utilization=0.5)
    workspace = 4 * 10 * 6 * 900 * 321
    probe = FakeProbe(DeviceMemory(total=4 * GIB, free=3 * GIB, reserved=GIB, peak=GIB - workspace))
    assert measured_frames(decoder, layout, share, probe) == GIB // 2 // layout.frame_bytes
    assert probe.num_runs == 1
    full = FakeProbe(DeviceMemory(total=GIB, free=0, reserved=GIB, peak=GIB))
    assert measured_frames(decoder, layout, share, full) == 0

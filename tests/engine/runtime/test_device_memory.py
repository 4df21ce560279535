"""How large a pool a GPU gets, by arithmetic with exact numbers."""

from dataclasses import replace

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.device_memory import DeviceMemory, PoolShare, pool_bytes, workspace_bytes

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
SHARE = PoolShare(utilization=0.9, num_tokens=2048, num_sequences=64, least_frames=512, most_frames=32768)


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

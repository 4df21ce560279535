"""Which kernels a rank compiles before its first step, and where none are."""

import pytest
import torch

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.backend import CPU, Attention, Backend
from pagefleet_engine.runtime.kv_cache import frame_layout
from pagefleet_engine.runtime.warming import attention_model, warm_kernels
from pagefleet_engine.startup import plan_runner
from pagefleet_engine.testing import TINY
from pagefleet_engine.warming import precisions_to_compile

LAYOUT = frame_layout(TINY, block_size=16, raw_dtype=torch.bfloat16)
ELSEWHERE = torch.device("meta")
"""Every tensor can be made on it and no kernel can run."""

NOTHING = {
    "a CPU": CPU,
    "Triton's interpreter": Backend(attention=Attention.TRITON, is_paged=True),
    "the references on a GPU": Backend(attention=Attention.REFERENCE, device_type="cuda", is_paged=True),
}


@pytest.mark.parametrize("backend", NOTHING.values(), ids=NOTHING.keys())
def test_nothing_is_compiled_for(backend):
    warm_kernels(backend, TINY, LAYOUT, list(Precision), ELSEWHERE)


def test_attention_is_compiled_for_the_model_of_the_rank():
    model = attention_model(TINY, LAYOUT)
    assert (model.layout, model.group) == (LAYOUT, TINY.num_heads // TINY.num_kv_heads)
    assert (model.masking.window, model.masking.soft_cap) == (None, None)


DEMOTED = {
    "precisions of requests": (({Precision.INT8, Precision.BF16}, False, ()), ("bf16", "int8")),
    "what bf16 is demoted to": (({Precision.BF16}, True, ()), ("bf16", "fp8_e4m3")),
    "no frame to demote": (({Precision.INT4}, True, ()), ("int4",)),
    "a device that cannot": (({Precision.BF16}, True, {Precision.FP8_E4M3}), ("bf16",)),
}


@pytest.mark.parametrize(("given", "expected"), DEMOTED.values(), ids=DEMOTED.keys())
def test_precisions_to_compile(given, expected):
    used, demotes, without = given
    assert precisions_to_compile(used, demotes=demotes, without=without) == expected


def test_the_plan_of_a_rank_names_them():
    given = EngineArguments(
        model="m.gguf", max_model_len=256, kv_cache_dtype=Precision.INT8, kv_cache_memory_bytes=100 * 2304
    )
    gpu = Backend(attention=Attention.TRITON, device_type="cuda", device_name="NVIDIA H200", is_paged=True)
    assert plan_runner(given, TINY, (257,), 2**33, gpu).precisions == (Precision.INT8,)

"""What an engine answers before it is ready on a GPU: something for every precision, within the length that it has."""

import torch

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.runtime.backend import Backend
from pagefleet_engine.runtime.graphs import RunAgain
from pagefleet_engine.runtime.kv_cache import frame_layout
from pagefleet_engine.testing import TINY, tiny_core
from pagefleet_engine.warming import compiling, warm_up
from pagefleet_kernels.layout import FrameLayout

SIZES = GroupSizes(FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128))


def lengths(max_model_len):
    return {
        str(request.precision): (request.num_prompt_tokens, request.sampling.max_tokens)
        for request in compiling(Precision, SIZES, max_model_len)
    }


def test_prompt_and_answer_complete_a_group_each():
    assert lengths(4096) == {
        "bf16": (29, 6), "fp8_e4m3": (61, 6), "fp8_e5m2": (61, 6), "int8": (57, 6), "int4": (109, 6),
    }  # fmt: skip


def test_a_short_context_bounds_them():
    assert set(lengths(40).values()) == {(29, 6), (34, 6)}
    assert set(lengths(16).values()) == {(10, 6)}


def test_all_of_them_are_answered_and_leave_nothing():
    core = tiny_core(dtype=torch.bfloat16, backend=Backend(is_paged=True), capture=RunAgain())
    sizes = GroupSizes(frame_layout(TINY, block_size=16, raw_dtype=torch.bfloat16))
    warm_up(core, list(compiling(Precision, sizes, 256)))
    stats = core.stats()
    assert (stats.frames["free"], stats.generation_tokens_total) == (32, 30)

"""What an engine compiles before it serves is all that its steps can ask for, and nothing else."""

import itertools
import random
from collections import Counter

import pytest
import torch

from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode.plan import NOTHING_SEALED, plan_decode
from pagefleet_kernels.variants import (
    KernelName,
    Model,
    combine_variant,
    copy_variant,
    decode_variant,
    prefill_variant,
    seal_variant,
    variants,
    write_open_variant,
)
from pagefleet_kernels.warming import warm

LLAMA = Model(layout=FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128), group=4)
SMOLLM = Model(layout=FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=64), group=3)
IN_USE = {
    "bf16 alone": [Precision.BF16],
    "fp8 alone": [Precision.FP8_E4M3],
    "int8 and bf16": [Precision.INT8, Precision.BF16],
    "all": list(Precision),
}


def counted(model, precisions):
    return Counter(str(variant.kernel) for variant in variants(model, precisions))


def test_one_precision_needs_few_kernels():
    others = {"combine": 1, "copy": 1, "write_open": 1}
    assert counted(LLAMA, [Precision.BF16]) == {"decode": 2, "prefill": 1, **others}
    assert counted(LLAMA, [Precision.FP8_E4M3]) == {"decode": 3, "prefill": 2, "seal": 4, **others}
    assert counted(LLAMA, Precision) == {"decode": 10, "prefill": 10, "seal": 16, **others}


@pytest.mark.parametrize("precisions", IN_USE.values(), ids=IN_USE.keys())
@pytest.mark.parametrize("model", [LLAMA, SMOLLM], ids=["Llama", "SmolLM2"])
def test_no_two_of_them_are_the_same(model, precisions):
    found = list(variants(model, precisions))
    assert len(set(found)) == len(found)


class Recorder:
    """`Start` that starts nothing and remembers what for."""

    def __init__(self):
        self.variants = []

    def __call__(self, variant, grid, /, *arguments, native):
        self.variants.append(variant)


@pytest.mark.parametrize("precisions", IN_USE.values(), ids=IN_USE.keys())
@pytest.mark.parametrize("model", [LLAMA, SMOLLM], ids=["Llama", "SmolLM2"])
def test_the_warm_up_starts_all_of_them(model, precisions):
    recorder = Recorder()
    warm(model, precisions, torch.device("cpu"), start=recorder)
    assert set(recorder.variants) == set(variants(model, precisions))


def test_the_warm_up_runs():
    tiny = Model(layout=FrameLayout(num_layers=1, num_kv_heads=1, head_dim=16, block_size=8), group=2)
    warm(tiny, [Precision.BF16, Precision.FP8_E4M3], torch.device("cpu"))


def asked_for(model, precisions, *, max_sequences, max_tokens, multiprocessors, chooser):
    """The variants of one random step of an engine with this configuration."""
    layout, tables = model.layout, []
    for precision in chooser.sample(precisions, chooser.randint(0, len(precisions))):
        longest = -(-max_tokens // layout.tokens_per_frame(precision))
        tables.append((precision, int(longest ** chooser.random())))
    sequences = chooser.randint(1, max_sequences)
    plan = plan_decode(model, tables or [NOTHING_SEALED], num_sequences=sequences, multiprocessors=multiprocessors)
    yield from (part.variant for part in plan.parts)
    if not plan.is_direct or len(tables) > 1:
        yield combine_variant(layout)
    for precision, _ in tables or [NOTHING_SEALED]:
        yield prefill_variant(model, precision, direct=len(tables) <= 1)
    for precision in precisions:
        if precision is not Precision.BF16:
            yield seal_variant(layout, precision, chooser.randint(0, 1), from_open=chooser.random() < 0.5)
    yield write_open_variant(layout)
    yield copy_variant(layout)


@pytest.mark.parametrize("precisions", IN_USE.values(), ids=IN_USE.keys())
@pytest.mark.parametrize("model", [LLAMA, SMOLLM], ids=["Llama", "SmolLM2"])
def test_no_step_asks_for_another_kernel_and_each_is_asked_for(model, precisions):
    chooser, listed, met = random.Random(7), set(variants(model, precisions)), set()
    for _ in range(1000):
        met |= set(
            asked_for(model, precisions, max_sequences=256, max_tokens=131072, multiprocessors=132, chooser=chooser)
        )
    assert met == listed


def test_decode_of_any_shape_takes_one_of_two_kernels_per_precision():
    for precision, sequences, width in itertools.product(Precision, (1, 2, 31, 64, 256), (1, 2, 17, 500, 8192)):
        plan = plan_decode(LLAMA, [(precision, width)], num_sequences=sequences, multiprocessors=132)
        (part,) = plan.parts
        assert part.variant == decode_variant(LLAMA, precision, direct=plan.is_direct)
        assert plan.is_direct == (part.splits == 1)
        assert plan.num_parts == part.programs == part.splits + (0 if plan.is_direct else 1)


def test_parts_of_several_precisions_lie_one_after_the_other():
    shapes = [(Precision.FP8_E4M3, 512), (Precision.BF16, 1)]
    plan = plan_decode(LLAMA, shapes, num_sequences=8, multiprocessors=132)
    first, second = plan.parts
    assert (first.splits, first.first_part, first.programs) == (6, 0, 7)
    assert (second.splits, second.first_part, second.programs) == (1, 7, 1)
    assert plan.num_parts == 8
    assert {part.variant.kernel for part in plan.parts} == {KernelName.DECODE}

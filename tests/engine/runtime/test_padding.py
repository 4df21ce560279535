"""Padding rows of a decode step read and write nothing: same pool bytes, same activations of the real rows."""

import pickle
from dataclasses import replace

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import Attention, Backend
from pagefleet_engine.runtime.graphs import RunAgain
from pagefleet_engine.runtime.kv_cache import KvCache
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.testing import TINY, tiny_core, tiny_decoder

DECODER = tiny_decoder(replace(TINY, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16), seed=3)
REFERENCE = Backend(is_paged=True)
TRITON = Backend(attention=Attention.TRITON, is_paged=True)


@pytest.fixture(scope="module")
def decode_step():
    """A step of five decodes in four precisions, one of which completes its group, and the pool before it."""
    core = tiny_core(decoder=DECODER, raw_dtype=torch.bfloat16, block_size=8, num_frames=40, backend=REFERENCE)
    precisions = (Precision.FP8_E4M3, Precision.BF16, Precision.INT8, Precision.INT4, Precision.BF16)
    for index, precision in enumerate(precisions):
        prompt = [(7 * i * i + index) % 256 for i in range(15 if index == 0 else 19 + index)]
        sampling = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        core.add(Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling, precision=precision))
    output = core.scheduler.schedule()
    while any(len(request.token_ids) > 1 for request in output.requests):
        results = core._executor.execute(output)
        core.scheduler.update(output, {r.request_id: (r.token_id,) for r in results}, [], [])
        output = core.scheduler.schedule()
    assert len(output.requests) == 5
    assert any(write.seals for request in output.requests for write in request.writes)
    return output, core._executor._runner.cache


def computed(decode_step, backend, capture, *, sent=False):
    """Activations of the step, the pool after it, and the rows that were computed; `sent` as another rank gets it."""
    output, before = decode_step
    cache = KvCache(before.layout, num_frames=before.num_frames)
    cache.pool.copy_(before.pool)
    runner = ModelRunner(DECODER, cache, Sampler(seed=0, eos_token_ids=()), backend=backend, capture=capture)
    work = runner.plan(output)
    if sent:
        work = pickle.loads(pickle.dumps(work._replace(batch=work.batch.without_sampling())))
        assert work.batch.sampled == ()
    return runner.compute(work), cache.pool, work.batch.num_decodes


@pytest.mark.parametrize("backend", [REFERENCE, TRITON], ids=["reference", "triton"])
def test_a_padded_step_equals_one_that_is_not(decode_step, backend):
    want, pool, rows = computed(decode_step, backend, None)
    got, padded_pool, padded_rows = computed(decode_step, backend, RunAgain())
    assert (rows, padded_rows) == (5, 8)
    assert torch.equal(got, want)
    assert bool(got.isfinite().all())
    assert torch.equal(padded_pool, pool)
    changed = (pool != decode_step[1].pool).any(dim=1)
    assert 5 <= int(changed.sum()) <= 6
    assert bool((pool[~changed] == decode_step[1].pool[~changed]).all())


def test_another_rank_computes_the_same_from_what_it_is_sent(decode_step):
    want, pool, _ = computed(decode_step, REFERENCE, None)
    got, other_pool, _ = computed(decode_step, REFERENCE, None, sent=True)
    assert torch.equal(got, want)
    assert torch.equal(other_pool, pool)


def test_padding_rows_get_zeros_from_attention_and_see_none_of_the_poison(decode_step):
    output, before = decode_step
    assert bool((before.pool[39] == 0xFF).all())  # frames that nobody holds are NaN
    runner = ModelRunner(DECODER, before, Sampler(seed=0, eos_token_ids=()), backend=REFERENCE, capture=RunAgain())
    batch = runner.plan(output).batch
    seen = runner._steps._compute(batch)
    assert seen.shape[0] == 8
    assert torch.equal(seen[5], seen[7])  # token 0 at position 0 without any context
    assert bool(seen.isfinite().all())

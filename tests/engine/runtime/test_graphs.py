"""Which steps are captured, which graphs are kept, and what is said of a device without enough memory."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.runtime.backend import Attention, Backend
from pagefleet_engine.runtime.graphs import RunAgain, StepGraphs
from pagefleet_engine.runtime.loading import RunnerPlan, refusing_what_does_not_fit
from pagefleet_engine.runtime.packed import pack
from pagefleet_engine.runtime.paged_batch import PagedBatch

HERE = torch.zeros(1)


def batch(values, precisions=(Precision.BF16,)):
    return PagedBatch(
        ints=pack([np.array(values, dtype=np.int32)]),
        num_decodes=len(values),
        num_chunks=0,
        num_rows=len(values),
        decode_precisions=precisions,
        chunk_precisions=(),
        decode_seals=(),
        chunk_seals=(),
        sample_rows_S=torch.arange(len(values)),
        sampled=(SimpleNamespace(samples=True),),
    )


class Model:
    """Doubles what is in the buffer, and remembers whose batch it was called with."""

    def __init__(self):
        self.batches = []

    def __call__(self, batch, buffer):
        self.batches.append(batch)
        return 2 * batch.ints.at(buffer).views()[0]


def test_a_shape_is_run_first_then_captured_and_replayed_over_new_numbers():
    model, graphs = Model(), StepGraphs(RunAgain())
    results = [graphs.run(batch(values), model, HERE).tolist() for values in ([1, 2], [3, 4], [5, 6])]
    assert results == [[2, 4], [6, 8], [10, 12]]
    assert graphs.num_captured == 1
    assert model.batches[1] is model.batches[2]
    assert model.batches[1].sampled == ()  # a graph that is kept keeps no request


def test_other_widths_and_other_precisions_are_other_graphs():
    graphs = StepGraphs(RunAgain())
    kinds = [([1, 2], (Precision.BF16,)), ([1, 2, 3], (Precision.BF16,)), ([1, 2], (Precision.BF16, Precision.INT8))]
    for values, precisions in kinds * 2:
        graphs.run(batch(values, precisions), Model(), HERE)
    assert graphs.num_captured == 3


def test_the_graph_that_was_used_least_recently_makes_room():
    graphs = StepGraphs(RunAgain())
    for size in [*range(1, 65)] * 2:
        graphs.run(batch(list(range(size))), Model(), HERE)
    assert graphs.num_captured == 64
    graphs.run(batch([0]), Model(), HERE)
    for _ in range(2):
        graphs.run(batch(list(range(65))), Model(), HERE)
    model = Model()
    for size in (1, 2):
        graphs.run(batch(list(range(size))), model, HERE)
    assert [b.num_decodes for b in model.batches] == [2]  # size 1 was replayed, size 2 had to begin again


def test_shapes_that_came_once_push_no_graph_out():
    model, graphs = Model(), StepGraphs(RunAgain())
    for _ in range(2):
        graphs.run(batch([1]), model, HERE)
    for size in range(2, 200):
        graphs.run(batch(list(range(size))), Model(), HERE)
    graphs.run(batch([2]), model, HERE)
    assert graphs.num_captured == 1
    assert model.batches[1] is model.batches[2]


def test_a_closed_runner_keeps_no_graph():
    kept = []

    def capture(run):
        replay = RunAgain()(run)
        kept.append(weakref.ref(replay))
        return replay

    graphs = StepGraphs(capture)
    for _ in range(2):
        graphs.run(batch([1]), Model(), HERE)
    assert kept[0]() is not None
    graphs.close()
    assert kept[0]() is None


def test_a_device_that_is_too_small_is_named_with_what_would_help():
    plan = RunnerPlan(
        model="llama", dtype=torch.bfloat16, num_positions=64, block_size=16, num_frames=1, num_host_frames=0, seed=0,
        eos_token_ids=(), batch_invariant=False,
        backend=Backend(attention=Attention.TRITON, device_type="cuda", device_name="NVIDIA L4", is_paged=True),
    )  # fmt: skip
    with pytest.raises(StartupError) as error, refusing_what_does_not_fit(plan):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
    assert str(error.value) == (
        "--model llama: weights, one step and frames do not fit on NVIDIA L4 (CUDA out of memory): use more ranks "
        "(--tensor-parallel-size), a smaller pool (--kv-cache-memory-bytes) or a smaller model"
    )

"""What one rank needs to build its runner: sizes and a path, so that a child process can be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.parallel import AllReduce, Shard
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.backend import CPU, Backend
from pagefleet_engine.runtime.cuda import device_parts
from pagefleet_engine.runtime.device_memory import PoolShare, check_frames
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.profiling import measured_frames
from pagefleet_engine.runtime.ranks import least_over_ranks
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.runtime.warming import warm_kernels
from pagefleet_engine.weights.checkpoint import Checkpoint
from pagefleet_engine.weights.loader import load_decoder, open_checkpoint
from pagefleet_kernels.layout import FrameLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPlan:
    """The same on every rank. Frames are those of one rank; all ranks have equally many."""

    model: str
    dtype: torch.dtype
    num_positions: int
    block_size: int
    num_frames: int
    num_host_frames: int
    seed: int
    eos_token_ids: tuple[int, ...]
    batch_invariant: bool
    backend: Backend = CPU
    precisions: tuple[Precision, ...] = ()
    """In use from the start: their kernels are compiled before the first step."""
    share: PoolShare | None = None
    """Set where the pool is sized by measuring; `num_frames` says nothing then."""

    def layout(self, config: ModelConfig, shard: Shard) -> FrameLayout:
        """The frame on one rank. Raises ValueError for a model that cannot be divided so."""
        return frame_layout(shard.config(config), block_size=self.block_size, raw_dtype=self.dtype)


def load_runner(plan: RunnerPlan, shard: Shard, all_reduce: AllReduce | None) -> ModelRunner:
    """Open the model and build one rank's runner. Raises `StartupError`."""
    return make_runner(plan, open_checkpoint(plan.model), shard, all_reduce)


def make_runner(plan: RunnerPlan, checkpoint: Checkpoint, shard: Shard, all_reduce: AllReduce | None) -> ModelRunner:
    """One rank's runner from an open checkpoint. Raises `StartupError`."""
    with refusing_what_does_not_fit(plan):
        return _make_runner(plan, checkpoint, shard, all_reduce)


@contextmanager
def refusing_what_does_not_fit(plan: RunnerPlan) -> Iterator[None]:
    """Raises `StartupError` where the device runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        found = str(error).split(". ", maxsplit=1)[0]
        raise StartupError(
            f"--model {plan.model}: weights, one step and frames do not fit on {plan.backend.device_name} ({found}): "
            "use more ranks (--tensor-parallel-size), a smaller pool (--kv-cache-memory-bytes) or a smaller model"
        ) from error


def make_sampler(plan: RunnerPlan) -> Sampler:
    """Rows are drawn together on a GPU, except where a row's bits must not depend on its neighbours."""
    in_batches = plan.backend.is_gpu and not plan.batch_invariant
    return Sampler(seed=plan.seed, eos_token_ids=plan.eos_token_ids, in_batches=in_batches)


def _make_runner(plan: RunnerPlan, checkpoint: Checkpoint, shard: Shard, all_reduce: AllReduce | None) -> ModelRunner:
    device = plan.backend.device(shard.rank)
    parts = device_parts(plan.backend, shard.rank)
    decoder = load_decoder(
        checkpoint,
        dtype=plan.dtype,
        device=device,
        num_positions=plan.num_positions,
        shard=shard,
        all_reduce=all_reduce,
    )
    layout = plan.layout(checkpoint.config, shard)
    num_frames = plan.num_frames
    if plan.share is not None and parts.probe is not None:
        measured = measured_frames(decoder, layout, plan.share, parts.probe)
        agreed = measured if all_reduce is None else least_over_ranks(measured, device)
        num_frames = check_frames(agreed, plan.share, layout.frame_bytes)
    cache = KvCache(
        layout,
        num_frames=num_frames,
        num_host_frames=plan.num_host_frames,
        raw_dtype=plan.dtype,
        device=device,
        lane=parts.lane,
        host_memory=parts.host_memory,
    )
    warm_kernels(plan.backend, shard.config(checkpoint.config), layout, plan.precisions, device)
    return ModelRunner(
        decoder,
        cache,
        make_sampler(plan),
        batch_invariant=plan.batch_invariant,
        backend=plan.backend,
        capture=parts.capture,
    )

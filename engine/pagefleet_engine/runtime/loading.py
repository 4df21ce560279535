"""What one rank needs to build its runner: sizes and a path, so that a child process can be told."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagefleet_engine.layers.parallel import AllReduce, Shard
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
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

    def layout(self, config: ModelConfig, shard: Shard) -> FrameLayout:
        """The frame on one rank. Raises ValueError for a model that cannot be divided so."""
        return frame_layout(shard.config(config), block_size=self.block_size, raw_dtype=self.dtype)


def load_runner(plan: RunnerPlan, shard: Shard, all_reduce: AllReduce | None) -> ModelRunner:
    """Open the model and build one rank's runner. Raises `StartupError`."""
    return make_runner(plan, open_checkpoint(plan.model), shard, all_reduce)


def make_runner(plan: RunnerPlan, checkpoint: Checkpoint, shard: Shard, all_reduce: AllReduce | None) -> ModelRunner:
    """One rank's runner from an open checkpoint. Raises `StartupError`."""
    device = torch.device("cpu")
    decoder = load_decoder(
        checkpoint,
        dtype=plan.dtype,
        device=device,
        num_positions=plan.num_positions,
        shard=shard,
        all_reduce=all_reduce,
    )
    cache = KvCache(
        plan.layout(checkpoint.config, shard),
        num_frames=plan.num_frames,
        num_host_frames=plan.num_host_frames,
        raw_dtype=plan.dtype,
        device=device,
    )
    sampler = Sampler(seed=plan.seed, eos_token_ids=plan.eos_token_ids)
    return ModelRunner(decoder, cache, sampler, batch_invariant=plan.batch_invariant)

"""How many bytes of a GPU the KV pool may take: arithmetic over what a profiling run measured. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.models.config import ModelConfig
from pagefleet_kernels.launch import MAX_SPLITS

_GRAPHS = 512 * 2**20
"""Bytes kept free for the buffers of captured graphs, and for fragmentation."""


class DeviceMemory(NamedTuple):
    """Bytes of one GPU."""

    total: int
    free: int
    """Of the whole device, other processes counted."""
    reserved: int
    """Held by this process's allocator, used or not."""
    peak: int
    """Most that this process ever used at once: weights, and activations of the largest batch."""


class MemoryProbe(Protocol):
    """Asks the device; an edge."""

    def measure(self, run: Callable[[], object], /) -> DeviceMemory:
        """Run it and say what the device held, `peak` during the run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """What a rank needs to size its pool by measuring; the same on every rank."""

    utilization: float
    num_tokens: int
    """Token budget of one step."""
    num_sequences: int
    """Capacity."""
    max_model_len: int
    widest: Precision
    """The precision in which a sequence takes most frames."""
    least_frames: int
    """What one sequence of the longest length takes in it."""
    most_frames: int
    """What all sequences of the capacity take together."""


def workspace_bytes(config: ModelConfig, share: PoolShare, num_precisions: int) -> int:
    """Most bytes that attention takes beside its result: fp32 parts of a merge, per query head.

    Prefill makes one part for each precision; decode one for each share of a sequence, and one for its open frames.
    """
    part = 4 * (config.head_dim + 2) * config.num_heads
    prefill = share.num_tokens * num_precisions
    decode = share.num_sequences * (num_precisions * MAX_SPLITS + 1)
    return part * max(prefill, decode)


def check_frames(frames: int, share: PoolShare, frame_bytes: int) -> int:
    """Frames of the pool, at most what all sequences can fill. Raises `StartupError` where not one of them fits."""
    if frames < share.least_frames:
        raise StartupError(
            f"--gpu-memory-utilization {share.utilization:g} leaves {frames} frames beside the model and its largest "
            f"batch, but one sequence of {share.max_model_len} tokens in {share.widest} takes {share.least_frames}: "
            f"free {(share.least_frames - frames) * frame_bytes} bytes, or lower --max-model-len"
        )
    return min(frames, share.most_frames)


def pool_bytes(memory: DeviceMemory, utilization: float, workspace: int) -> int:
    """What is left of the engine's share after others, the model, its largest batch and attention's workspace.

    Others are whatever the device holds outside this process's allocator, its own CUDA context included.
    """
    others = memory.total - memory.free - memory.reserved
    return int(memory.total * utilization) - others - memory.peak - workspace - _GRAPHS

"""Run the largest batch once, to learn what a device has left for frames when a model works on it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.device_memory import MemoryProbe, PoolShare, pool_bytes, workspace_bytes
from pagefleet_engine.runtime.scoring import SLICE_ROWS, token_scores
from pagefleet_kernels.layout import FrameLayout, Precision


def measured_frames(decoder: Decoder, layout: FrameLayout, share: PoolShare, probe: MemoryProbe) -> int:
    """Frames that fit beside this rank's weights, its largest batch and attention's workspace; 0 where none does."""
    memory = probe.measure(partial(run_largest_batch, decoder, share))
    workspace = workspace_bytes(decoder.config, share, len(Precision))
    return max(0, pool_bytes(memory, share.utilization, workspace) // layout.frame_bytes)


@torch.inference_mode()
def run_largest_batch(decoder: Decoder, share: PoolShare) -> None:
    """A step of as many tokens as a step may have, without frames; then logits for every sequence of the capacity.

    And the scores of a slice of prompt tokens, which may take more than that.
    """
    device, num_positions = decoder.embedding.weight.device, decoder.rotary.cos_PK.shape[0]
    positions_T = torch.arange(share.num_tokens, device=device) % num_positions
    hidden_TD = decoder.hidden(torch.zeros_like(positions_T), positions_T, _attend)
    rows_S = torch.arange(share.num_sequences, device=device) % share.num_tokens
    decoder.logits(hidden_TD[rows_S])
    scored = hidden_TD[:SLICE_ROWS]
    token_scores(decoder.logits(scored), [0] * len(scored), 1)


def _attend(layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
    """Takes the memory of contiguous queries, keys and values and of a result; computes nothing."""
    kept = q_THK.clone(), k_TGK.clone(), v_TGK.clone()
    return torch.zeros_like(kept[0])

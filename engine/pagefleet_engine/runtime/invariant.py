"""Attention for `--batch-invariant`: a row's bits depend on its own query and on the frames that it sees.

Neither the batch nor the way a prompt was cut into steps shows: every product has one shape, and partial results are
added in the order of positions (`pagefleet_kernels.attention.attend_group`). Slower than `attention.attend` by far.

Shapes: Q rows of one request, H query heads, G KV heads, F frames, L tokens of a frame, K head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagefleet_engine.runtime.attention import RawRows, StepAttention, read_raw_rows
from pagefleet_engine.runtime.batch import GroupRows, RequestRows
from pagefleet_kernels.attention import NOWHERE, FrameRun, attend_group
from pagefleet_kernels.tables import Masking

_OWN_BLOCKS = 4
"""Blocks that hold a group of any precision; a group's raw part is padded to this size."""


class InvariantAttention(StepAttention):
    """The same storing and sealing, another way to attend."""

    def _raw_rows(self, layer: int, rows: RequestRows, k_TGK: Tensor, v_TGK: Tensor) -> RawRows:
        return read_raw_rows(self._cache, layer, rows, k_TGK, v_TGK)

    def _attend(self, layer: int, index: int, raw: RawRows | None, q_QHK: Tensor) -> Tensor:
        rows = self._batch.requests[index]
        assert raw is not None
        sealed = self._sealed(layer, rows)
        scale = q_QHK.shape[-1] ** -0.5
        parts = []
        for group in rows.groups:
            queries = q_QHK[group.first : group.first + group.num_new]
            first = group.start + group.num_written
            positions = torch.arange(first, first + group.num_new)
            before = [run for run in sealed if int(run.positions[0, 0]) < group.start]
            own = self._own(raw.of(group), group)
            parts.append(attend_group(queries, positions, before, own, scale, Masking()))
        return torch.cat(parts).to(q_QHK.dtype)

    def _sealed(self, layer: int, rows: RequestRows) -> list[FrameRun]:
        """Earlier steps' frames in runs of one precision; this step's one by one, so that a run is seen whole."""
        runs, start = [], 0
        parts = [(s.precision, s.frames) for s in rows.segments]
        parts += [(g.precision, torch.tensor(g.frames[:1])) for g in rows.groups[:-1]]
        for precision, frames in parts:
            keys_GFLK, values_GFLK = self._cache.read(layer, precision, frames).float()
            _, num_frames, length, _ = keys_GFLK.shape
            positions = start + torch.arange(num_frames * length).view(num_frames, length)
            keys, values = keys_GFLK.transpose(0, 1).contiguous(), values_GFLK.transpose(0, 1).contiguous()
            runs.append(FrameRun(keys=keys, values=values, positions=positions))
            start += num_frames * length
        return runs

    def _own(self, kv_2GLK: Tensor, group: GroupRows) -> FrameRun:
        """The raw part of a group, padded with keys that nobody sees."""
        _, kv_heads, num_tokens, head_dim = kv_2GLK.shape
        size = _OWN_BLOCKS * self._cache.layout.block_size
        padded = torch.zeros((2, 1, kv_heads, size, head_dim))
        padded[:, 0, :, :num_tokens] = kv_2GLK
        positions = torch.full((1, size), NOWHERE)
        positions[0, :num_tokens] = torch.arange(group.start, group.start + num_tokens)
        return FrameRun(keys=padded[0], values=padded[1], positions=positions)

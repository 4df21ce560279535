"""Tensor parallelism: which part of every weight a rank holds, and the sum that joins the parts again.

q, k, v, gate and up are cut by output rows, whole heads together; o and down by input columns, so that each rank's
product is a partial sum. Embedding, norms and head are on every rank. KV heads are repeated where there are fewer than
ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pagefleet_engine.layers.basic import Projection
from pagefleet_engine.models.config import ModelConfig

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks; every rank gets the sum."""


@dataclass(frozen=True, slots=True)
class SummedLinear:
    """A linear layer of which each rank holds some input columns."""

    linear: Projection
    all_reduce: AllReduce

    def __call__(self, x_TI: Tensor) -> Tensor:
        return self.all_reduce(self.linear(x_TI))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank of `size`. Raises ValueError for a model that cannot be divided so."""

    rank: int = 0
    size: int = 1

    def config(self, whole: ModelConfig) -> ModelConfig:
        """What this rank's part looks like to the decoder."""
        return replace(
            whole,
            num_heads=self._share(whole.num_heads, "heads"),
            num_kv_heads=len(self.kv_heads(whole.num_kv_heads)),
            intermediate_size=self._share(whole.intermediate_size, "MLP columns"),
        )

    def slice(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's equal part along `dim`."""
        return tensor.chunk(self.size, dim)[self.rank] if self.size > 1 else tensor

    def kv_rows(self, tensor: Tensor, num_kv_heads: int) -> Tensor:
        """Rows of this rank's KV heads."""
        mine = self.kv_heads(num_kv_heads)
        rows = tensor.shape[0] // num_kv_heads
        return tensor[mine.start * rows : mine.stop * rows]

    def kv_heads(self, num_kv_heads: int) -> range:
        """The KV heads that this rank's query heads read."""
        if num_kv_heads >= self.size:
            share = self._share(num_kv_heads, "KV heads")
            return range(self.rank * share, (self.rank + 1) * share)
        if self.size % num_kv_heads:
            raise ValueError(f"{num_kv_heads} KV heads cannot be repeated evenly on {self.size} ranks")
        head = self.rank * num_kv_heads // self.size
        return range(head, head + 1)

    def _share(self, whole: int, what: str) -> int:
        if whole % self.size:
            raise ValueError(f"{whole} {what} cannot be divided among {self.size} ranks")
        return whole // self.size

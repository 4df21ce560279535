"""Decode steps as captured graphs: one per shape of the packed tables, made when a shape comes for the second time.

A graph reads its tables from a buffer of its own, which every step fills in one copy, and leaves its result in a tensor
of its own. What a captured run allocates belongs to the graph. Capturing itself is an edge (`runtime.cuda`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pagefleet_engine.runtime.paged_batch import PagedBatch

_MOST_GRAPHS = 64
"""The least recently used one makes room: each holds its own activations."""
_MOST_SEEN = 1024
"""Shapes that came once. They cost nothing but their keys, and never take a graph's place."""

V = TypeVar("V")
Compute = Callable[[PagedBatch, Tensor], Tensor]
"""The model over a batch whose tables are in a buffer."""


class Replay(Protocol):
    """A captured run."""

    def __call__(self) -> Tensor:
        """Run again over what the buffers hold now; the same tensor every time."""
        ...


class Capture(Protocol):
    """Records a run without executing it."""

    def __call__(self, run: Callable[[], Tensor], /) -> Replay: ...


class _Graph(NamedTuple):
    buffer: Tensor
    replay: Replay


class StepGraphs:
    """The graphs of one runner."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def run(self, batch: PagedBatch, compute: Compute, beside: Tensor) -> Tensor:
        """The result of a step, valid until the next one. `beside` is any tensor on the device."""
        key = (batch.ints.shapes, batch.decode_precisions)
        graph = self._graphs.get(key)
        if graph is None:
            buffer = batch.ints.buffer.to(beside.device, copy=True)
            if key not in self._seen:  # the first run also compiles what a capture must find compiled
                _keep(self._seen, key, None, _MOST_SEEN)
                return compute(batch, buffer)
            kept = batch.without_sampling()
            graph = _Graph(buffer, self._capture(lambda: compute(kept, buffer)))
            del self._seen[key]
            _keep(self._graphs, key, graph, _MOST_GRAPHS)
        self._graphs.move_to_end(key)
        graph.buffer.copy_(batch.ints.buffer, non_blocking=True)
        return graph.replay()

    def close(self) -> None:
        """Let go of every graph. What was captured of a process group must be gone before the group ends."""
        self._graphs.clear()


def _keep(kept: OrderedDict[Hashable, V], key: Hashable, value: V, most: int) -> None:
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


class RunAgain:
    """`Capture` without a device: replays by running again over the same buffers."""

    def __call__(self, run: Callable[[], Tensor], /) -> Replay:
        kept: list[Tensor] = []

        def replay() -> Tensor:
            result = run()
            if not kept:
                kept.append(torch.empty_like(result))
            return kept[0].copy_(result)

        return replay

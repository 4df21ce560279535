"""The edge to CUDA: streams, events, pinned memory, graphs and the device's own figures. Nothing else asks torch.cuda.

Imported everywhere, but it touches a GPU only where `Backend.is_gpu`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from pagefleet_engine.runtime.backend import Backend, Machine
from pagefleet_engine.runtime.device_memory import DeviceMemory, MemoryProbe
from pagefleet_engine.runtime.graphs import Capture, Replay
from pagefleet_engine.runtime.transfers import InlineLane, Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """What a runner takes from its device."""

    lane: Lane
    pins_host: bool = False
    """Host frames lie in page-locked memory, which the device can copy from and to by itself."""
    capture: Capture | None = None
    """None where there are no graphs."""
    probe: MemoryProbe | None = None
    """None where the pool is not sized by measuring."""


def find_machine(environ: Mapping[str, str]) -> Machine:
    """What this machine has."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(gpus)),
        capability=min((torch.cuda.get_device_capability(index) for index in range(gpus)), default=(0, 0)),
        has_triton=find_spec("triton") is not None,
        interprets=environ.get("TRITON_INTERPRET") == "1",
    )


def device_parts(backend: Backend, rank: int) -> DeviceParts:
    """For one rank, whose GPU becomes this process's current one. Nothing is captured under `--batch-invariant`."""
    if not backend.is_gpu:
        return DeviceParts(lane=InlineLane())
    device = backend.device(rank)
    torch.cuda.set_device(device)
    capture = GraphCapture() if backend.attention == "triton" else None
    return DeviceParts(lane=CopyStream(device), pins_host=True, capture=capture, probe=CudaMemory(device))


class CopyStream:
    """A `Lane` on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, copies: Callable[[], None], /) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            copies()
            mark: torch.cuda.Event = self._stream.record_event()
            return mark

    def wait(self, mark: torch.cuda.Event, /) -> None:
        torch.cuda.current_stream(self._stream.device).wait_event(mark)

    def is_done(self, mark: torch.cuda.Event, /) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]


class GraphCapture:
    """Captures into one memory pool: graphs run one at a time, and each keeps only its result alive."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor], /) -> Replay:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class CudaMemory:
    """`MemoryProbe` of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def measure(self, run: Callable[[], object], /) -> DeviceMemory:
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(total=total, free=free, reserved=torch.cuda.memory_reserved(self._device), peak=peak)

"""The edge to CUDA: streams, events, pinned memory, graphs and the device's own figures. Nothing else asks torch.cuda.

Imported everywhere, but it touches a GPU only where `Backend.is_gpu`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from weakref import WeakSet

import torch
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.runtime.backend import Backend, Machine
from pagefleet_engine.runtime.device_memory import DeviceMemory, MemoryProbe
from pagefleet_engine.runtime.graphs import Capture, Replay
from pagefleet_engine.runtime.host_memory import HostMemory, locked, pageable
from pagefleet_engine.runtime.transfers import InlineLane, Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """What a runner takes from its device."""

    lane: Lane
    host_memory: HostMemory = pageable
    """Where swapped frames lie; on a GPU page-locked, so that the device can copy from and to it by itself."""
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
    return DeviceParts(lane=CopyStream(device), host_memory=page_locked, capture=capture, probe=CudaMemory(device))


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
    """Captures into one memory pool: graphs run one at a time, and each keeps only its result alive.

    A pool's handle must not outlive its graphs: a later capture into it fails, if any block of the pool still lives.
    """

    def __init__(self) -> None:
        self._replays: WeakSet[GraphReplay] = WeakSet()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor], /) -> Replay:
        if not self._replays:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads may use the device meanwhile: NCCL has one that asks for its events.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = run()
        replay = GraphReplay(graph, result)
        self._replays.add(replay)
        return replay


class GraphReplay:
    """A captured run."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph = graph
        self._result = result

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self._result


def page_locked(num_bytes: int) -> Tensor:
    """`[num_bytes]` zeroed bytes of host memory that the device can reach. Raises `StartupError`.

    Not by torch's pinned allocator, which rounds a block up to a power of two: 20 GiB would lock 32.
    """
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def lock(address: int) -> Callable[[], object]:
        error = int(cudart.cudaHostRegister(address, num_bytes, 1))
        if error:
            message = f"--swap-space: {num_bytes} bytes of host memory cannot be page-locked (CUDA error {error})"
            raise StartupError(message)
        return partial(cudart.cudaHostUnregister, address)

    return locked(num_bytes, lock)


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

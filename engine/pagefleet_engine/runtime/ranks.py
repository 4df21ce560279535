"""Several ranks behind the executor's Protocol: this process is rank 0, the others are its children.

Every rank holds its share of the weights and of the KV heads; frame tables are the same everywhere. A step goes to each
rank as one pickled message, ranks meet in the model's sums (`torch.distributed`), and rank 0 samples.
A rank that is lost ends the engine.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported at run time only

from pagefleet_engine.errors import EngineError, StartupError
from pagefleet_engine.layers.parallel import AllReduce, Shard
from pagefleet_engine.runtime.backend import CPU, Backend
from pagefleet_engine.runtime.runner import ModelRunner, Work
from pagefleet_engine.runtime.sampler import Sampled
from pagefleet_engine.runtime.steps import StepBatch
from pagefleet_engine.scheduling.output import ScheduleOutput

MakeRunner = Callable[[Shard, AllReduce], ModelRunner]
"""Builds a rank's runner; picklable, because the children call it too."""

_TIMEOUT = timedelta(seconds=120)
"""How long a rank waits for the others, at start and in a sum."""


_END_WITHIN_S = 5.0
"""How long the group and then each child may take to end."""

_READY = b"ready"


class RankLost(EngineError):
    """A child has ended or does not answer; the engine cannot go on."""


class RanksExecutor:
    """`size` ranks. Raises `StartupError` when one of them does not come up."""

    def __init__(self, make_runner: MakeRunner, size: int, *, num_threads: int = 1, backend: Backend = CPU) -> None:
        self._store = TCPStore("127.0.0.1", 0, size, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._children: list[BaseProcess] = []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            arguments = (make_runner, Shard(rank=rank, size=size), self._store.port, num_threads, backend, theirs)
            child = context.Process(target=run_rank, args=arguments, name=f"rank-{rank}", daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)
        try:
            join_group(self._store, Shard(rank=0, size=size), backend)
            self._runner = make_runner(Shard(rank=0, size=size), sum_over_ranks)
            for pipe in self._pipes:
                self._check_ready(pipe.recv_bytes())
        except StartupError:
            self._end()
            raise
        except (RuntimeError, OSError, EOFError) as error:
            self._end()
            raise StartupError(f"--tensor-parallel-size {size}: {self._lost() or error}") from error

    @property
    def num_frames(self) -> int:
        """Frames of every rank's pool."""
        return self._runner.cache.num_frames

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        """Run one step on all ranks. Raises `RankLost`."""
        work = self._runner.plan(output)
        message = pickle.dumps(_without_sampling(work), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            for pipe in self._pipes:
                pipe.send_bytes(message)
            hidden = self._runner.compute(work)
        except (RuntimeError, OSError) as error:
            raise RankLost(self._lost() or f"the ranks have lost each other: {error}") from error
        return self._runner.sample(work, hidden)

    def close(self) -> None:
        """Tell the children to end, and see that they do."""
        self._runner.close()
        self._end()

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        leave_group()  # beside the children, since NCCL's ranks end together
        for child in self._children:
            child.join(timeout=_END_WITHIN_S)
            if child.is_alive():
                child.terminate()
                child.join()

    @staticmethod
    def _check_ready(answer: bytes) -> None:
        """Raises `StartupError` with what a rank has to say instead."""
        if answer != _READY:
            raise StartupError(answer.decode())

    def _lost(self) -> str | None:
        for child in self._children:
            child.join(timeout=0.5)
            if child.exitcode is not None:
                return f"{child.name} has ended with exit code {child.exitcode}"
        return None


def run_rank(
    make_runner: MakeRunner, shard: Shard, port: int, num_threads: int, backend: Backend, pipe: Connection
) -> None:
    """A child's life: join, load, then one message per step until rank 0 closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when to end
    torch.set_num_threads(num_threads)
    store = TCPStore("127.0.0.1", port, shard.size, is_master=False, timeout=_TIMEOUT)
    join_group(store, shard, backend)
    try:
        runner = make_runner(shard, sum_over_ranks)
    except StartupError as error:  # rank 0 tells people
        pipe.send_bytes(str(error).encode())
        return
    pipe.send_bytes(_READY)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            break
        runner.compute(pickle.loads(message))
    runner.close()
    leave_group()


def leave_group() -> None:
    """Destroy the process group, or leave it to the end of the process: NCCL waits for a lost rank for ever."""
    if dist.is_initialized():
        ending = threading.Thread(target=dist.destroy_process_group, name="leave-group", daemon=True)
        ending.start()
        ending.join(_END_WITHIN_S)


def join_group(store: TCPStore, shard: Shard, backend: Backend) -> None:
    """Every rank calls this once. GPUs meet by NCCL, CPUs by gloo."""
    dist.init_process_group(
        "nccl" if backend.is_gpu else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=_TIMEOUT,
        device_id=backend.device(shard.rank) if backend.is_gpu else None,
    )


def least_over_ranks(value: int, device: torch.device) -> int:
    """The smallest of all ranks' values, the same on every rank."""
    least = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least)


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """In place, and the same on every rank."""
    dist.all_reduce(tensor)
    return tensor


def _without_sampling(work: Work[StepBatch]) -> Work[StepBatch]:
    """Only rank 0 samples; the requests' parameters and texts stay here."""
    return work if work.batch is None else work._replace(batch=work.batch.without_sampling())

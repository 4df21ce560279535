"""From the command line to an `EngineCore` that has answered one token: model, pool, scheduler, executor.

Everything that can be wrong with the arguments, the files or the memory is found here, as `StartupError`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from pagefleet_engine.api import ModelInfo, Tokenizer
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.parallel import Shard
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.request import Request
from pagefleet_engine.runtime.backend import CPU, Backend, choose_backend
from pagefleet_engine.runtime.cuda import find_machine
from pagefleet_engine.runtime.device_memory import PoolShare
from pagefleet_engine.runtime.executor import LocalExecutor
from pagefleet_engine.runtime.host import available_bytes, usable_cores
from pagefleet_engine.runtime.host_share import keeps_four_bits, model_bytes
from pagefleet_engine.runtime.loading import RunnerPlan, load_runner, make_runner
from pagefleet_engine.runtime.ranks import RanksExecutor
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_engine.server.control.start_file import FLAG as START_FLAG
from pagefleet_engine.server.control.start_file import precisions_in_use, read_start
from pagefleet_engine.text.open import open_tokenizer
from pagefleet_engine.warming import compiling, precisions_to_compile, warm_up
from pagefleet_engine.weights.checkpoint import Checkpoint
from pagefleet_engine.weights.loader import WHOLE, open_checkpoint
from pagefleet_engine.weights.resolve import resolve_model
from pagefleet_kernels.layout import FrameLayout

log = logging.getLogger(__name__)

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine that is ready to be driven."""

    core: EngineCore
    model_info: ModelInfo
    tokenizer: Tokenizer


def build_core(arguments: EngineArguments) -> BuiltEngine:
    """Load everything and warm up. Blocking; takes seconds. Raises `StartupError`."""
    began = time.monotonic()
    torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
    found = resolve_model(arguments.model)
    arguments = replace(arguments, model=found.path)
    checkpoint = open_checkpoint(found.path)
    tokenizer = open_tokenizer(checkpoint)
    backend = find_backend(arguments, os.environ)
    plan = plan_runner(
        arguments,
        checkpoint.config,
        tokenizer.eos_token_ids,
        available_bytes(),
        backend,
        in_four_bits=keeps_four_bits(checkpoint),
    )
    layout = plan.layout(checkpoint.config, Shard(size=arguments.tensor_parallel_size))
    executor = start_executor(plan, checkpoint, arguments.tensor_parallel_size)
    plan = replace(plan, num_frames=executor.num_frames)
    core = EngineCore(
        Scheduler(scheduler_config(arguments, plan, checkpoint.source), layout),
        executor,
        vocab_size=checkpoint.config.vocab_size,
        monotonic_s=time.monotonic,
    )
    warm_up(core, warm_up_requests(arguments, plan, layout))
    log.info(
        "%s ready after %.1f s: %d frames of %d bytes, context %d tokens, attention by %s on %s",
        checkpoint.source,
        time.monotonic() - began,
        plan.num_frames,
        layout.frame_bytes,
        plan.num_positions,
        backend.attention,
        backend.device_name,
    )
    names = arguments.served_model_name
    info = ModelInfo(
        id=names[0] if names else found.hub_name or os.path.basename(checkpoint.source),
        max_model_len=plan.num_positions,
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        precision=arguments.kv_cache_dtype,
        longest_kv=longest_kv(plan, layout),
        attention_backend=backend.attention,
        device=backend.device_name,
    )
    return BuiltEngine(core=core, model_info=info, tokenizer=tokenizer)


def find_backend(arguments: EngineArguments, environ: Mapping[str, str]) -> Backend:
    """What this machine offers these arguments. Raises `StartupError`."""
    return choose_backend(
        environ,
        find_machine(environ),
        num_ranks=arguments.tensor_parallel_size,
        batch_invariant=arguments.batch_invariant,
        dtype=_DTYPES[arguments.dtype],
    )


def plan_runner(
    arguments: EngineArguments,
    config: ModelConfig,
    eos_token_ids: tuple[int, ...],
    free_bytes: int,
    backend: Backend = CPU,
    *,
    in_four_bits: bool = False,
) -> RunnerPlan:
    """Sizes of the runner on every rank, from the arguments and the host memory there is. Raises `StartupError`.

    On a GPU the pool takes a share of the device, which ranks measure once their weights are there (`share`). On a CPU
    the share of the free memory holds weights, one step and swapped frames as well; `in_four_bits` says that the file
    brings a packed copy of the weights.
    """
    size = arguments.tensor_parallel_size
    dtype = _DTYPES[arguments.dtype]
    max_model_len = resolve_max_model_len(arguments, config)
    precisions = precisions_in_use(arguments, read_start(arguments), max_model_len)
    check_precisions(arguments, precisions, dtype, backend)
    plan = RunnerPlan(
        model=arguments.model,
        dtype=dtype,
        num_positions=max_model_len,
        block_size=arguments.block_size,
        num_frames=1,
        num_host_frames=0,
        seed=arguments.seed,
        eos_token_ids=eos_token_ids,
        batch_invariant=arguments.batch_invariant,
        backend=backend,
        precisions=precisions_to_compile(precisions, demotes=may_demote(arguments), without=backend.without),
    )
    try:
        layout = plan.layout(config, Shard(size=size))
    except ValueError as error:
        raise StartupError(f"--tensor-parallel-size {size}: {error}") from error
    model = 0 if backend.is_gpu else size * rank_bytes(plan, config, arguments, in_four_bits=in_four_bits)
    swap = swap_bytes(arguments, max(0, free_bytes - model))
    plan = replace(plan, num_host_frames=swap // size // layout.frame_bytes)
    if backend.is_gpu and arguments.kv_cache_memory_bytes is None:
        return replace(plan, share=pool_share(arguments, layout, max_model_len, precisions))
    taken = (model + swap) // size
    frames = pool_frames(arguments, layout, max_model_len, free_bytes // size, precisions, taken_bytes=taken)
    return replace(plan, num_frames=frames)


def rank_bytes(plan: RunnerPlan, config: ModelConfig, arguments: EngineArguments, *, in_four_bits: bool) -> int:
    """What one rank on a CPU takes beside its frames."""
    size = arguments.tensor_parallel_size
    return model_bytes(
        Shard(size=size).config(config),
        arguments,
        itemsize=plan.dtype.itemsize,
        num_positions=plan.num_positions,
        is_packed=in_four_bits and size == 1 and plan.dtype is torch.bfloat16,
    )


def may_demote(arguments: EngineArguments) -> bool:
    """Whether a route of the start lets BF16 frames become FP8 ones."""
    return any(route.allow_demotion for route in read_start(arguments).routes or ())


def warm_up_requests(arguments: EngineArguments, plan: RunnerPlan, layout: FrameLayout) -> list[Request]:
    """On a GPU every precision in use is compiled before the engine is ready; elsewhere one token will do."""
    if not plan.backend.is_gpu:
        return []
    precisions = precisions_in_use(arguments, read_start(arguments), plan.num_positions)
    return list(compiling(sorted(precisions), GroupSizes(layout), plan.num_positions))


def longest_kv(plan: RunnerPlan, layout: FrameLayout) -> dict[Precision, int]:
    """Tokens of one request that the whole pool holds, by precision that frames can be sealed in."""
    sizes = GroupSizes(layout)
    kept = [Precision.BF16] if plan.dtype is torch.float32 else [p for p in Precision if p not in plan.backend.without]
    # the KV of a request's last token is never computed
    return {precision: sizes.longest(plan.num_frames, precision) + 1 for precision in kept}


def pool_share(
    arguments: EngineArguments, layout: FrameLayout, max_model_len: int, precisions: Collection[Precision]
) -> PoolShare:
    """The pool's share of a GPU, and the bounds of what it may come to."""
    one, widest = widest_sequence(arguments, layout, max_model_len, precisions)
    return PoolShare(
        utilization=arguments.gpu_memory_utilization,
        num_tokens=arguments.max_num_batched_tokens,
        num_sequences=arguments.max_num_seqs,
        max_model_len=max_model_len,
        widest=widest,
        least_frames=one,
        most_frames=one * arguments.max_num_seqs,
    )


def widest_sequence(
    arguments: EngineArguments, layout: FrameLayout, max_model_len: int, precisions: Collection[Precision]
) -> tuple[int, Precision]:
    """Frames of one sequence of the longest length in the precision that takes most, and that precision."""
    used = {arguments.kv_cache_dtype, *precisions}
    return max((GroupSizes(layout).peak_frames(max_model_len, precision), precision) for precision in used)


def start_executor(plan: RunnerPlan, checkpoint: Checkpoint, size: int) -> LocalExecutor | RanksExecutor:
    """One process, or `size` of them. Raises `StartupError`."""
    if size == 1:
        return LocalExecutor(make_runner(plan, checkpoint, WHOLE, None))
    threads = max(1, torch.get_num_threads() // size)
    return RanksExecutor(partial(load_runner, plan), size, num_threads=threads, backend=plan.backend)


def scheduler_config(arguments: EngineArguments, plan: RunnerPlan, model: str) -> SchedulerConfig:
    """What the scheduler is started with."""
    return SchedulerConfig(
        num_frames=plan.num_frames,
        num_host_frames=plan.num_host_frames,
        max_num_seqs=arguments.max_num_seqs,
        initial_cap=arguments.initial_cap,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_model_len=plan.num_positions,
        max_num_queued=arguments.max_num_queued_reqs,
        max_num_queued_tokens=arguments.queued_tokens,
        eos_token_ids=plan.eos_token_ids,
        enable_prefix_caching=arguments.enable_prefix_caching,
        model=model,
        cache_key=os.urandom(32),
        # demotion makes fp8_e4m3 of bf16 frames
        batch_invariant=arguments.batch_invariant or Precision.FP8_E4M3 in plan.backend.without,
    )


def resolve_max_model_len(arguments: EngineArguments, config: ModelConfig) -> int:
    """The context length: what was asked for, at most what the model was trained for."""
    wanted = arguments.max_model_len
    if wanted is not None and wanted > config.context_len:
        raise StartupError(
            f"--max-model-len {wanted}: this model was trained for {config.context_len} tokens; use at most that"
        )
    return wanted or config.context_len


def check_precisions(
    arguments: EngineArguments, precisions: Iterable[Precision], dtype: torch.dtype, backend: Backend = CPU
) -> None:
    """Refuse what cannot be sealed: anything in fp32 frames, for reference numerics, and what a GPU cannot convert."""
    for precision in precisions:
        origin = "--kv-cache-dtype" if precision is arguments.kv_cache_dtype else START_FLAG
        if precision in backend.without:
            others = ", ".join(p for p in Precision if p not in backend.without)
            raise StartupError(f"{origin}: {backend.device_name} cannot convert {precision}: use one of {others}")
        if dtype is torch.float32 and precision is not Precision.BF16:
            raise StartupError(f"--dtype float32 keeps K and V as they are: leave {precision} out of {origin}")


def pool_frames(
    arguments: EngineArguments,
    layout: FrameLayout,
    max_model_len: int,
    free_bytes: int,
    precisions: Collection[Precision] = (),
    *,
    taken_bytes: int = 0,
) -> int:
    """Frames of the pool, from a byte budget or a share of the free memory, of which `taken_bytes` go to others.

    A share never takes more than every sequence of the capacity could fill. Raises `StartupError`, with the bytes it
    would take, when one sequence of `max_model_len` does not fit in one of `precisions`.
    """
    one, widest = widest_sequence(arguments, layout, max_model_len, precisions)
    if arguments.kv_cache_memory_bytes is not None:
        frames = arguments.kv_cache_memory_bytes // layout.frame_bytes
        origin = f"--kv-cache-memory-bytes {arguments.kv_cache_memory_bytes}"
    else:
        frames = max(0, int(free_bytes * arguments.gpu_memory_utilization) - taken_bytes) // layout.frame_bytes
        frames = min(frames, one * arguments.max_num_seqs)
        origin = f"--gpu-memory-utilization {arguments.gpu_memory_utilization:g} of {free_bytes} free bytes"
        if taken_bytes:
            origin += f", less {taken_bytes} for the weights, one step and --swap-space,"
    if frames < one:
        raise StartupError(
            f"{origin} holds {frames} frames, but one sequence of {max_model_len} tokens in {widest} takes {one}: "
            f"give {one * layout.frame_bytes} bytes, or lower --max-model-len"
        )
    return frames


def swap_bytes(arguments: EngineArguments, free_bytes: int) -> int:
    """Host memory for swapped frames: what was asked for, but at most a quarter of what is free.

    The default of a service fits no small container, and frames that fill it up must not end the process.
    """
    wanted, most = int(arguments.swap_space * 2**30), free_bytes // 4
    if wanted > most:
        log.warning(
            "--swap-space %g: %.2f GiB are used, a quarter of the memory that is free",
            arguments.swap_space,
            most / 2**30,
        )
    return min(wanted, most)

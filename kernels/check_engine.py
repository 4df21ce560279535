"""The engine itself on a GPU, with random weights in the shape of Llama-3-8B; `check_gpu.py` runs it as two parts.

`engine`: tokens per second of prompts and of answers, through scheduler, runner and sampler. `graphs`: what a decode
step costs outside its kernels, with and without captured graphs. Needs `PYTHONPATH=kernels:engine`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.layers.basic import Embedding, GatedMLP, Linear, RMSNorm
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.llama import Decoder, DecoderLayer
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import Attention, Backend
from pagefleet_engine.runtime.cuda import GraphCapture, device_parts
from pagefleet_engine.runtime.graphs import Capture, RunAgain
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampled, Sampler
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.output import ScheduleOutput
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_kernels.bench.case import Case

LLAMA_8B = ModelConfig(
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    context_len=8192,
    rope_base=500_000.0,
    norm_eps=1e-5,
    tied_embeddings=False,
)
SMALL = ModelConfig(
    architecture="llama",
    num_layers=1,
    hidden_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=32,
    vocab_size=64,
    context_len=128,
    rope_base=10_000.0,
    norm_eps=1e-5,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Equal requests that all run at once."""

    batch: int
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the cores of a case share."""

    decoder: Decoder
    backend: Backend
    capture: Callable[[], Capture]
    """A fresh one for each core: a pool of graphs must not outlive the graphs that were captured into it."""
    num_frames: int
    num_seqs: int
    budget: int
    """Tokens of one step."""


@dataclass(slots=True)
class TimedExecutor:
    """`LocalExecutor` that keeps the seconds that each step spent between its first and its last kernel."""

    runner: ModelRunner
    device_s: list[float] = field(default_factory=list)
    only_decoded: bool = False
    """The last step had no prompt in it."""

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        self.only_decoded = all(len(request.token_ids) == 1 for request in output.requests)
        work = self.runner.plan(output)
        began = time.perf_counter()
        if self.runner.cache.pool.is_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            hidden = self.runner.compute(work)
            end.record()
            results = self.runner.sample(work, hidden)
            end.synchronize()
            self.device_s.append(begin.elapsed_time(end) * 1e-3)
            return results
        hidden = self.runner.compute(work)
        self.device_s.append(time.perf_counter() - began)
        return self.runner.sample(work, hidden)

    def close(self) -> None:
        """Nothing to end."""


def loads(small: bool) -> tuple[Load, ...]:
    """What is measured; on a CPU a few steps."""
    if small:
        return (Load(batch=2, prompt=10, answer=4),)
    return Load(batch=64, prompt=1024, answer=128), Load(batch=1, prompt=1024, answer=128)


def backend_of(small: bool) -> Backend:
    """The GPU's, or on a CPU the kernels' references in the form of a GPU's steps."""
    if small:
        return Backend(is_paged=True)
    return Backend(attention=Attention.TRITON, device_type="cuda", device_name="cuda", is_paged=True)


def pool_frames(frame_bytes: int, free: int) -> int:
    """Frames in 32 GiB, or in 60 % of the device's free bytes where that is less."""
    return min(32 * 2**30, free * 6 // 10) // frame_bytes


@cache
def setup_of(small: bool, config: ModelConfig) -> Setup:
    """Weights, made when a process's first case asks for them, and the size of the pool."""
    backend = backend_of(small)
    decoder = random_decoder(config, backend.device())
    num_frames = 40
    if not small:
        layout = frame_layout(config, block_size=16, raw_dtype=torch.bfloat16)
        num_frames = pool_frames(layout.frame_bytes, torch.cuda.mem_get_info()[0])
    return Setup(
        decoder=decoder,
        backend=backend,
        capture=RunAgain if small else GraphCapture,
        num_frames=num_frames,
        num_seqs=max(load.batch for load in loads(small)),
        budget=16 if small else 8192,
    )


def random_decoder(config: ModelConfig, device: torch.device, *, scaled: bool = False) -> Decoder:
    """Normal weights in bf16, of standard deviation 0.02 or `scaled` so that answers wander and logits are apart."""

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Linear:
        std = gain * columns**-0.5 if scaled else 0.02
        return Linear(torch.empty((rows, columns), dtype=torch.bfloat16, device=device).normal_(std=std))

    def norm() -> RMSNorm:
        return RMSNorm(torch.ones(config.hidden_size, dtype=torch.bfloat16, device=device), config.norm_eps)

    hidden, middle = config.hidden_size, config.intermediate_size
    layers = tuple(
        DecoderLayer(
            attention_norm=norm(),
            qkv=matrix(config.q_size + 2 * config.kv_size, hidden),
            q_norm=None,
            k_norm=None,
            output=matrix(hidden, config.q_size),
            mlp_norm=norm(),
            mlp=GatedMLP(gate_up=matrix(2 * middle, hidden), down=matrix(hidden, middle)),
        )
        for _ in range(config.num_layers)
    )
    return Decoder(
        config=config,
        embedding=Embedding(matrix(config.vocab_size, hidden, gain=hidden**0.5).weight),
        layers=layers,
        norm=norm(),
        head=matrix(config.vocab_size, hidden),
        rotary=RotaryTable(config, config.context_len, device),
    )


def make_core(setup: Setup, *, graphs: bool, num_host_frames: int = 0) -> tuple[EngineCore, TimedExecutor]:
    """A core over a fresh pool."""
    layout = frame_layout(setup.decoder.config, block_size=16, raw_dtype=torch.bfloat16)
    parts = device_parts(setup.backend, 0)
    cache = KvCache(
        layout,
        num_frames=setup.num_frames,
        num_host_frames=num_host_frames,
        device=setup.backend.device(),
        lane=parts.lane,
        host_memory=parts.host_memory,
    )
    capture = setup.capture() if graphs else None
    sampler = Sampler(seed=0, eos_token_ids=())
    executor = TimedExecutor(ModelRunner(setup.decoder, cache, sampler, backend=setup.backend, capture=capture))
    config = SchedulerConfig(
        num_frames=setup.num_frames,
        num_host_frames=num_host_frames,
        max_num_seqs=setup.num_seqs,
        max_num_batched_tokens=setup.budget,
        max_model_len=setup.decoder.config.context_len,
        eos_token_ids=(),
    )
    vocabulary = setup.decoder.config.vocab_size
    return EngineCore(Scheduler(config, layout), executor, vocab_size=vocabulary, monotonic_s=time.monotonic), executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds of one load's steps."""

    prompt_s: float
    """All steps with a prompt in them."""
    decode_s: list[float]
    """Each step without one."""
    device_s: list[float]
    """The same steps, between their first and last kernel."""


def drive(core: EngineCore, executor: TimedExecutor, load: Load, precision: Precision) -> Run:
    """Run a load to its end. Its first two decode steps, which compile and capture, are left out."""
    sampling = SamplingParams(temperature=0.0, max_tokens=load.answer, ignore_eos=True)
    vocabulary = executor.runner.decoder.config.vocab_size
    for index in range(load.batch):
        prompt = [(index * 7919 + 31 * i) % vocabulary for i in range(load.prompt)]
        request = Request(request_id=f"{index}", prompt_token_ids=prompt, sampling=sampling, precision=precision)
        core.add(request)
    prompt_s, steps = 0.0, list[float]()
    executor.device_s.clear()
    while core.has_work:
        began = time.perf_counter()
        core.step()
        took = time.perf_counter() - began
        if executor.only_decoded:
            steps.append(took)
        else:
            prompt_s += took
    return Run(prompt_s=prompt_s, decode_s=steps[2:], device_s=executor.device_s[-len(steps) :][2:])


def engine_case(small: bool, config: ModelConfig, load: Load, precision: Precision) -> dict[str, Any]:
    """Tokens per second of prompts and of answers, with graphs; the whole load runs once before, to compile."""
    run = _second_run(setup_of(small, config), load, precision, graphs=True)
    return {
        "precision": str(precision),
        "batch": load.batch,
        "prompt": load.prompt,
        "answer": load.answer,
        "prompt_tokens_per_s": round(load.batch * load.prompt / run.prompt_s),
        "answer_tokens_per_s": round(load.batch * len(run.decode_s) / max(sum(run.decode_s), 1e-9), 1),
    }


def graphs_case(small: bool, config: ModelConfig, load: Load, precision: Precision) -> list[dict[str, Any]]:
    """A decode step with and without graphs; outside is what is neither kernels nor gaps between replayed ones."""
    found = {}
    for graphs in (True, False):
        run = _second_run(setup_of(small, config), load, precision, graphs=graphs)
        found[graphs] = statistics.median(run.decode_s), statistics.median(run.device_s)
    kernels = found[True][1]
    return [
        {
            "graphs": graphs,
            "precision": str(precision),
            "batch": load.batch,
            "step_ms": round(step * 1e3, 3),
            "device_ms": round(device * 1e3, 3),
            "outside_share": round(max(0.0, step - kernels) / step, 3),
        }
        for graphs, (step, device) in found.items()
    ]


def _second_run(setup: Setup, load: Load, precision: Precision, *, graphs: bool) -> Run:
    """Drive a load twice on one core; its pool is free again after."""
    gc.collect()  # the core of the case before, which may be in a cycle
    core, executor = make_core(setup, graphs=graphs)
    drive(core, executor, load, precision)
    return drive(core, executor, load, precision)


MEASURED = (Precision.BF16, Precision.FP8_E4M3)


def engine_cases(small: bool) -> list[Case]:
    """The part `engine`."""
    config = SMALL if small else LLAMA_8B
    return [
        Case("engine", _name(load, p), partial(engine_case, small, config, load, p), limit_s=90.0)
        for load in loads(small)
        for p in MEASURED
    ]


def graphs_cases(small: bool) -> list[Case]:
    """The part `graphs`."""
    config, precision = SMALL if small else LLAMA_8B, MEASURED[0]
    return [
        Case("graphs", _name(load, precision), partial(graphs_case, small, config, load, precision), limit_s=90.0)
        for load in loads(small)
    ]


def compile_cases(small: bool) -> list[Case]:
    """What compiles the engine's kernels of attention: the same heads and layers in a narrow model."""
    config = replace(SMALL if small else LLAMA_8B, hidden_size=32 if small else 256, intermediate_size=64)
    load = Load(batch=2, prompt=10, answer=4) if small else Load(batch=8, prompt=1024, answer=4)
    return [Case("compile", f"engine {p}", partial(warm_case, small, config, load, p), limit_s=120.0) for p in MEASURED]


def warm_case(small: bool, config: ModelConfig, load: Load, precision: Precision) -> dict[str, Any]:
    """Answer a small load once, and say how long that took."""
    setup = setup_of(small, config)
    layout = frame_layout(config, block_size=16, raw_dtype=torch.bfloat16)
    needed = load.batch * ((load.prompt + load.answer) // layout.block_size + 4)
    core, executor = make_core(replace(setup, num_frames=needed), graphs=True)
    run = drive(core, executor, load, precision)
    return {"kernels": f"engine {precision}", "seconds": round(run.prompt_s + sum(run.decode_s), 1)}


def _name(load: Load, precision: Precision) -> str:
    return f"{precision} {load.batch} x {load.prompt}"
